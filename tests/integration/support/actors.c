/* SPDX-License-Identifier: Apache-2.0 */
#include "actors.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER_MS = 20000, MAX_ACTORS = 32 };

char actors_dir[64];
static actor *running[MAX_ACTORS];

int actors_begin(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    unsetenv("MOOR_DIR");
    unsetenv("MOOR_INSTANCE");
    unsetenv("MOOR_CONFIG");
    unsetenv("XDG_RUNTIME_DIR");
    strcpy(actors_dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/moor-test-XXXXXX" : "/tmp/moor-test-XXXXXX");
    return mkdtemp(actors_dir) && !setenv("MOOR_HOLDS_DIR", actors_dir, 1) ? 0 : -1; /* no other test's holds */
}

int actors_end(void **state)
{
    char command[96];
    (void)state;
    for (int i = 0; i < MAX_ACTORS; i++)
        if (running[i])
            actor_kill(running[i]);
    snprintf(command, sizeof(command), "rm -rf %s", actors_dir);
    return system(command);
}

void actor_start(actor *a, ...)
{
    int in[2], out[2];
    const char *program = getenv("MOOR_ACTOR"), *env;
    assert_non_null(program);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    a->pid = fork();
    if (a->pid == 0) {
        va_list args;
        setenv("MOOR_DIR", actors_dir, 1);
        va_start(args, a);
        while ((env = va_arg(args, const char *))) {
            char *copy = strdup(env), *value = strchr(copy, '=');
            if (value)
                *value++ = 0;
            if (value)
                setenv(copy, value, 1);
            else
                unsetenv(copy);
        }
        va_end(args);
        dup2(in[0], 0);
        dup2(out[1], 1);
        execl(program, program, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    assert_true(a->pid > 0);
    a->in = in[1];
    a->out = out[0];
    for (int i = 0; i < MAX_ACTORS; i++)
        if (!running[i]) {
            running[i] = a;
            return;
        }
    fail_msg("too many actors");
}

void actor_send(actor *a, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof(line) - 1, format, args);
    va_end(args);
    line[n++] = '\n';
    assert_int_equal(write(a->in, line, (size_t)n), n);
}

const char *actor_hear(actor *a, const char *expected)
{
    size_t used = 0;
    for (;;) {
        struct pollfd ready = {a->out, POLLIN, 0};
        if (poll(&ready, 1, ANSWER_MS) != 1)
            fail_msg("no answer within %d ms, expected \"%s\"", ANSWER_MS, expected);
        ssize_t got = read(a->out, a->line + used, 1);
        if (got != 1)
            fail_msg("the actor ended, expected \"%s\"", expected);
        if (a->line[used] == '\n')
            break;
        if (used < sizeof(a->line) - 2)
            used++;
    }
    a->line[used] = 0;
    if (strncmp(a->line, expected, strlen(expected)))
        fail_msg("the actor says \"%s\", expected \"%s\"", a->line, expected);
    return a->line;
}

const char *actor_say(actor *a, const char *expected, const char *format, ...)
{
    char line[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    actor_send(a, "%s", line);
    return actor_hear(a, expected);
}

static void gone(actor *a)
{
    close(a->in);
    close(a->out);
    for (int i = 0; i < MAX_ACTORS; i++)
        if (running[i] == a)
            running[i] = NULL;
}

void actor_stop(actor *a)
{
    int status;
    assert_int_equal(kill(a->pid, SIGSTOP), 0);
    assert_int_equal(waitpid(a->pid, &status, WUNTRACED), a->pid);
    assert_true(WIFSTOPPED(status));
}

void actor_kill(actor *a)
{
    kill(a->pid, SIGKILL);
    waitpid(a->pid, NULL, 0);
    gone(a);
}

void actor_exit(actor *a)
{
    int status = -1;
    actor_send(a, "exit");
    waitpid(a->pid, &status, 0);
    gone(a);
    assert_int_equal(status, 0);
}

int files_in(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    int n = 0;
    if (!dir)
        return -1;
    while ((entry = readdir(dir)))
        n += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
    closedir(dir);
    return n;
}

void start_server(actor *server)
{
    actor_start(server, NULL);
    actor_say(server, "ok default ", "join {}");
    actor_say(server, "ok", "store 0");
}

void start_another(actor *process, int store)
{
    actor_start(process, "MOOR_INSTANCE=default", NULL);
    actor_say(process, "ok default ", "join {}");
    actor_say(process, "ok", "store %d", store);
}

void start_consumer(actor *consumer)
{
    actor_start(consumer, NULL);
    actor_say(consumer, "ok", "attach default 5");
}

void record(actor *server, const char *id, int rows)
{
    actor_say(server, "ok", "step %s 0 %d", id, rows);
    actor_say(server, "ok", "seal %s %d", id, rows);
}
