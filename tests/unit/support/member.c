/* SPDX-License-Identifier: Apache-2.0 */
#include "member.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "hooks/holds.h"
#include "plugin/config.h"
#include "plugin/process.h"

static char dir[64], text[512];
static moor_config *config;

static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static char log_text[16384];
static size_t log_used;

static void take_log(void *user, int level, const char *line)
{
    (void)user, (void)level;
    pthread_mutex_lock(&log_mutex);
    int n = snprintf(log_text + log_used, sizeof(log_text) - log_used, "%s\n", line);
    if (n > 0 && log_used + (size_t)n < sizeof(log_text))
        log_used += (size_t)n;
    pthread_mutex_unlock(&log_mutex);
}

const char *support_log(void)
{
    return log_text;
}

void support_log_clear(void)
{
    pthread_mutex_lock(&log_mutex);
    log_used = 0;
    log_text[0] = 0;
    pthread_mutex_unlock(&log_mutex);
}

static void give_up(const char *what)
{
    fprintf(stderr, "support: %s: %s\n", what, moor_last_error());
    _exit(99);
}

moor_process *support_join(uint32_t roles, uint32_t rank, uint32_t world, uint32_t dp_rank)
{
    static moor_host host = MOOR_HOST_INIT;
    moor_process *process;
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    host.log = take_log;
    args.host = &host;
    args.engine = "test";
    args.roles = roles;
    args.rank = rank;
    args.world_size = world;
    args.dp_rank = dp_rank;
    if (moor_process_join(config, &args, &process))
        give_up("join");
    return process;
}

void support_leave(moor_process *process)
{
    moor_process_leave(process);
}

moor_process *support_start(const char *more, uint32_t roles)
{
    unsetenv("MOOR_INSTANCE");
    unsetenv("MOOR_DIR");
    unsetenv("MOOR_CONFIG");
    snprintf(dir, sizeof(dir), "/tmp/moor-test-XXXXXX");
    if (!mkdtemp(dir))
        give_up("mkdtemp");
    setenv("MOOR_HOLDS_DIR", dir, 1); /* no other test's holds */
    snprintf(text, sizeof(text), "{\"dir\":\"%s\",\"log\":\"debug\"%s%s}", dir, more ? "," : "", more ? more : "");
    if (moor_config_parse(text, strlen(text), &config))
        give_up(text);
    support_log_clear();
    return support_join(roles, 0, 1, 0);
}

int support_end(moor_process *process)
{
    moor_process_leave(process);
    moor_config_free(config);
    config = NULL;
    unsetenv("MOOR_INSTANCE");
    unsetenv("MOOR_DIR");
    moor_dirs bases;
    if (!moor_dirs_all(dir, &bases))
        moor_holds_sweep(&bases); /* of holders that the test killed */
    return rmdir(dir) == 0;
}

const char *support_dir(void)
{
    return dir;
}

void support_sleep_ms(unsigned ms)
{
    nanosleep(&(struct timespec){ms / 1000, (long)(ms % 1000) * 1000000}, NULL);
}

int support_wait(pid_t pid)
{
    int status;
    for (int i = 0; i < 6000; i++) {
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        support_sleep_ms(10);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
}
