/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hot path makes no system call: it runs in a child under a seccomp filter, where any but exit_group is death. (Strict
 * mode would not do: it also forbids the time stamp counter, which the clock reads. That it takes no process-wide lock is what the thread tests are for; what it costs is bench's business.)
 */
#include "support/lab.h"
#include "support/member.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hooks/gate.h"

enum { TIMES = 20000 };

static void no_system_calls_from_here(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        _exit(70);
}

static _Noreturn void leave(int code)
{
    _exit(code);
}

static void gate_in_child(void)
{
    moor_process *process = support_join(MOOR_ROLE_FRONTEND, 0, 1, 0);
    moor_ticket ticket;
    if (moor_gate_enter(process, "warm", 4, 0, 0, &ticket) ||
        moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, NULL))
        leave(1);
    no_system_calls_from_here();
    for (int i = 0; i < TIMES; i++)
        if (moor_gate_enter(process, "request", 7, 0, 0, &ticket) ||
            moor_gate_leave(process, &ticket, MOOR_OUTCOME_FINISHED, NULL))
            leave(1);
    leave(0);
}

static void S4_12_enter_and_leave_make_no_system_call(void **state)
{
    (void)state;
    moor_process *process = support_start("\"gate\":{\"mode\":\"enforce\"}", MOOR_ROLE_CORE);
    pid_t pid = fork();
    if (pid == 0)
        gate_in_child();
    int code = support_wait(pid);
    support_end(process);
    assert_int_equal(code, 0);
}

static void recording_in_child(void)
{
    static lab_store lab; /* the child's own: a parent's arena is not mapped here */
    lab_request request = {.id = "r", .start = 0, .count = 64, .hint = 64};
    lab_open(&lab);
    lab_step(&lab, &request, 1);
    moor_handle handle = 0;
    request = (lab_request){.id = "r", .start = 64, .count = 1};
    if (moor_records_find(lab.records, "r", 1, &handle) || lab_begin(&lab, &request, 1))
        leave(1);
    no_system_calls_from_here();
    lab_capture(&lab, &request, 1);
    for (int i = 0; i < TIMES; i++)
        if (moor_records_lease(lab.records, handle) || moor_records_unlease(lab.records, handle))
            leave(2);
    leave(0);
}

static void S1_13_S2_2_capture_and_lease_make_no_system_call(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0)
        recording_in_child();
    assert_int_equal(support_wait(pid), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S4_12_enter_and_leave_make_no_system_call),
        cmocka_unit_test(S1_13_S2_2_capture_and_lease_make_no_system_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
