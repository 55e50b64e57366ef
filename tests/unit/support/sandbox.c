/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "allocator/error.h"

int sandbox_run(int (*body)(int argument), int argument)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("CMOCKA_TEST_ABORT", "1", 1); /* an assertion in there ends the child */
        int result = body(argument);
        fflush(NULL);
        _exit(result);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 999;
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

int sandbox_says(const char *file, int line, const char *what)
{
    printf("%s:%d: not so: %s (last error: %s)\n", file, line, what, moor_last_error());
    return 1;
}

void sandbox_refuse_some(int number, int n, unsigned mask, unsigned value, int err)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "the low half of an argument lies elsewhere"
#endif
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)(offsetof(struct seccomp_data, args) + 8 * (size_t)n)),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ((unsigned)err & SECCOMP_RET_DATA)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("seccomp");
        exit(99);
    }
}

void sandbox_refuse(int number, int err)
{
    sandbox_refuse_some(number, 0, 0, 0, err);
}

int sandbox_tmpfs(const char *path, unsigned long bytes)
{
    char options[64];
    snprintf(options, sizeof(options), "size=%lu,mode=0700", bytes);
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return -1;
    return mount("tmpfs", path, "tmpfs", 0, options);
}
