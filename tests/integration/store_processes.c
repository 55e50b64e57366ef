/* SPDX-License-Identifier: Apache-2.0 */
/* Store, socket and client, by real processes: a server actor records, consumer actors read (plugin/server.c, peer.c, client/). */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/actors.h"

/* A number of the stores' statistics, by the consumer's eyes. */
static long stat_of(actor *consumer, const char *name)
{
    char key[64];
    const char *at, *text = actor_say(consumer, "ok", "stats");
    snprintf(key, sizeof(key), "\"%s\": ", name);
    at = strstr(text, key);
    if (!at)
        fail_msg("no %s in %s", name, text);
    return strtol(at + strlen(key), NULL, 10);
}

static void wait_stat(actor *consumer, const char *name, long value)
{
    for (int i = 0; i < 2000; i++) {
        if (stat_of(consumer, name) == value)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    fail_msg("%s is %ld, expected %ld", name, stat_of(consumer, name), value);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static void a_consumer_reads_what_was_recorded(void **state)
{
    (void)state;
    actor server, consumer;
    start_server(&server);
    record(&server, "req-a", 100);
    start_consumer(&consumer);
    actor_say(&consumer, "ok req-a rows=100 missing=0", "open req-a 0");
    assert_non_null(strstr(consumer.line, "good"));
    actor_say(&consumer, "MOOR_E_NOT_FOUND", "open nobody 0");
    /* fewer rows than expected: incomplete, with the exact range (SEMANTICS 1.5) */
    actor_say(&server, "ok", "step req-b 0 7");
    actor_say(&server, "ok", "seal req-b 9");
    actor_say(&consumer, "ok req-b rows=9 missing=2 segments=2", "open req-b 1");
    actor_say(&consumer, "ok", "release");
}

static void an_open_waits_for_the_seal(void **state)
{
    (void)state;
    actor server, consumer;
    start_server(&server);
    start_consumer(&consumer);
    actor_say(&server, "ok", "step slow 0 5");
    actor_say(&consumer, "MOOR_E_TIMEOUT", "open slow 0");
    double begin = now_s();
    actor_say(&consumer, "MOOR_E_TIMEOUT", "open slow 0.2");
    assert_true(now_s() - begin >= 0.19);
    /* not even recorded yet, sealed while it waits */
    begin = now_s();
    actor_send(&consumer, "open later 10");
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    record(&server, "later", 3);
    actor_hear(&consumer, "ok later rows=3 missing=0");
    assert_true(now_s() - begin < 10); /* not at its deadline */
    actor_say(&consumer, "MOOR_E_NOT_FOUND", "open never 0.1");
}

/* The answer comes long before the timeout, which is beyond what actor_say waits. */
static void S1_21_an_open_does_not_wait_where_nothing_is_recorded(void **state)
{
    (void)state;
    actor server, consumer;
    actor_start(&server, NULL);
    actor_say(&server, "ok default ", "join {}");
    actor_say(&server, "ok", "off no MoE router was found in the model");
    start_consumer(&consumer);
    actor_say(&consumer,
              "MOOR_E_UNSUPPORTED instance \"default\" records nothing: no MoE router was found in the model",
              "open any 600");
    actor_say(&server, "ok", "store 0"); /* a worker started again */
    record(&server, "any", 3);
    actor_say(&consumer, "ok any rows=3", "open any 5");
}

static void siblings_open_in_index_order(void **state)
{
    (void)state;
    actor server, consumer;
    start_server(&server);
    start_consumer(&consumer);
    for (int i = 2; i >= 0; i--) {
        actor_say(&server, "ok", "step sib-%d 0 4", i);
        actor_say(&server, "ok", "alias sib-%d %d", i, i);
        actor_say(&server, "ok", "seal sib-%d 4", i);
    }
    actor_say(&consumer, "ok sib-0 sib-1 sib-2", "open_all http 1");
    actor_say(&consumer, "MOOR_E_AMBIGUOUS", "open http 0");
    assert_non_null(strstr(consumer.line, "sib-0"));
    assert_non_null(strstr(consumer.line, "sib-2"));
}

/* A record of so many pieces that its description does not fit a message. */
static void a_large_reply_travels_in_a_memfd(void **state)
{
    (void)state;
    actor server, consumer;
    start_server(&server);
    start_consumer(&consumer);
    /* every step leaves a gap: row 2i is recorded, 2i+1 is not (no index: missing) */
    for (int i = 0; i < 2500; i++) {
        actor_send(&server, "step holes %d 1", 2 * i);
        actor_hear(&server, "ok");
    }
    actor_say(&server, "ok", "seal holes 5000");
    actor_say(&consumer, "ok holes rows=5000 missing=2500 segments=5000", "open holes 5");
    assert_non_null(strstr(consumer.line, "good"));
}

static void threads_share_a_connection(void **state)
{
    (void)state;
    actor server, consumer;
    start_server(&server);
    record(&server, "shared", 64);
    start_consumer(&consumer);
    actor_say(&consumer, "ok failed=0", "race shared 8 200");
    wait_stat(&consumer, "leases", 0);
    /* one waits long, the others must not wait behind it */
    actor two;
    start_consumer(&two);
    actor_send(&two, "open unborn 10");
    actor_say(&consumer, "ok failed=0", "race shared 4 50");
    record(&server, "unborn", 2);
    actor_hear(&two, "ok unborn");
}

static void refs_resolve_and_never_to_another_server(void **state)
{
    (void)state;
    actor server, consumer;
    char ref[300];
    start_server(&server);
    record(&server, "r", 9);
    start_consumer(&consumer);
    actor_say(&consumer, "ok r", "open r 1");
    snprintf(ref, sizeof(ref), "%s", actor_say(&consumer, "ok moor1:", "ref") + 3);
    actor_say(&consumer, "ok r", "resolve %s", ref);
    assert_non_null(strstr(ref, ":u8:9x3x2"));
    actor_say(&consumer, "MOOR_E_INVALID", "resolve moor1:x");
    actor_say(&consumer, "MOOR_E_NOT_FOUND resolve: the ref is of host elsewhere", "resolve moor1:elsewhere%s",
              strchr(ref + 6, ':'));
    /* the same name, the same store, perhaps the same handle: an earlier life */
    actor_kill(&server);
    start_server(&server);
    record(&server, "other", 9);
    actor_say(&consumer, "MOOR_E_STALE", "resolve %s", ref);
}

/* Given up once, and no other is attached to wait for it again; it is no fault of the ref. */
static void a_ref_of_a_store_that_hangs(void **state)
{
    (void)state;
    actor server, consumer;
    char ref[300];
    start_server(&server);
    record(&server, "a", 4);
    start_consumer(&consumer);
    actor_say(&consumer, "ok", "open a 1");
    snprintf(ref, sizeof(ref), "%s", actor_say(&consumer, "ok moor1:", "ref") + 3);
    actor_say(&consumer, "ok a", "resolve %s", ref);
    actor_stop(&server);
    actor_say(&consumer, "MOOR_E_CLOSED the connection to store 0", "resolve %s", ref);
    actor_say(&consumer, "MOOR_E_TIMEOUT resolve: store 0 of instance \"default\" does not answer", "resolve %s", ref);
    kill(server.pid, SIGCONT);
    do /* the test's own deadline */
        actor_send(&consumer, "resolve %s", ref);
    while (strncmp(actor_hear(&consumer, ""), "ok a", 4) != 0);
}

/* What was resolved before shares its connections with a ref that cannot be. */
static void a_ref_of_a_dead_store_costs_no_other_ref_its_lease(void **state)
{
    (void)state;
    actor zero, one, consumer, watcher;
    char refs[2][300];
    start_server(&zero);
    start_another(&one, 1);
    record(&zero, "at-zero", 4);
    actor_say(&one, "ok", "step at-one 0 6");
    actor_say(&one, "ok", "seal at-one 6 1");
    start_consumer(&watcher);
    for (int i = 0; i < 2; i++) {
        actor_say(&watcher, "ok", "open at-%s 1", i ? "one" : "zero");
        snprintf(refs[i], sizeof(refs[i]), "%s", actor_say(&watcher, "ok moor1:", "ref") + 3);
    }
    actor_say(&watcher, "ok", "release");
    actor_start(&consumer, NULL);
    actor_say(&consumer, "ok at-zero", "resolve %s", refs[0]);
    actor_kill(&one);
    actor_say(&consumer, "MOOR_E_CLOSED", "resolve %s", refs[1]);
    actor_say(&watcher, "MOOR_E_", "open at-one 0"); /* notices, too */
    assert_int_equal(stat_of(&watcher, "leases"), 1);
    actor_say(&consumer, "ok", "release");
    wait_stat(&watcher, "leases", 0);
}

/* ---- leases ----------------------------------------------------------------------------------------------------- */

static void a_killed_consumer_leaves_no_lease(void **state)
{
    (void)state;
    actor server, consumer, watcher;
    start_server(&server);
    record(&server, "held", 10);
    start_consumer(&consumer);
    start_consumer(&watcher);
    actor_say(&consumer, "ok held", "open held 1");
    actor_say(&consumer, "ok held", "open held 1");
    assert_int_equal(stat_of(&watcher, "leases"), 2);
    actor_kill(&consumer);
    wait_stat(&watcher, "leases", 0);
    actor_say(&server, "ok", "step next 0 3"); /* and the server goes on */
    actor_say(&server, "ok", "seal next 3");
    actor_say(&watcher, "ok next", "open next 1");
}

/* It reads, and that is all: nothing that it does or is reaches its parent. */
static void a_forked_child_has_the_records_and_nothing_else(void **state)
{
    (void)state;
    actor server, consumer, watcher;
    start_server(&server);
    record(&server, "held", 10);
    start_consumer(&consumer);
    start_consumer(&watcher);
    actor_say(&consumer, "ok held", "open held 1");
    actor_say(&consumer, "ok open=MOOR_E_FORKED info=MOOR_OK event=MOOR_E_FORKED", "fork");
    assert_int_equal(stat_of(&watcher, "leases"), 1); /* the child's release and detach were its own */
    actor_say(&consumer, "ok good", "verify");
    actor_say(&consumer, "ok held", "open held 1");
    actor_say(&server, "ok open=- info=- event=- count=MOOR_E_FORKED step=MOOR_E_FORKED join=MOOR_OK default", "fork");
    actor_say(&watcher, "ok held", "open held 1");
}

/* Frees the record of that id, and has others written where its rows would lie if nobody held them. */
static void free_and_write_over(actor *server, actor *other, const char *id)
{
    actor_say(other, "ok", "open %s 1", id);
    actor_say(other, "ok", "event 2");
    actor_say(other, "ok", "release");
    for (int i = 0; i < 200; i++) {
        char name[8];
        snprintf(name, sizeof(name), "y%d", i);
        record(server, name, 10);
    }
}

/* What a data loader's worker does: it reads what its parent opened, long after the parent has let go of it. */
static void S2_8_a_forked_child_reads_its_rows_whatever_the_parent_does(void **state)
{
    (void)state;
    actor server, consumer, other;
    start_server(&server);
    record(&server, "held", 10);
    start_consumer(&consumer);
    start_consumer(&other);
    actor_say(&consumer, "ok held", "open held 1");
    actor_say(&consumer, "ok ", "child");
    actor_say(&consumer, "ok", "release");
    free_and_write_over(&server, &other, "held");
    actor_say(&consumer, "ok good", "tell verify");
    assert_int_equal(stat_of(&other, "leases"), 1);
    actor_say(&consumer, "ok y1", "open y1 1"); /* over a connection of its own, with a lease of its own */
    assert_int_equal(stat_of(&other, "leases"), 2);
    actor_say(&consumer, "ok", "release");
    wait_stat(&other, "leases", 1);
    actor_say(&consumer, "ok good", "tell verify");
    actor_say(&consumer, "ok MOOR_E_FORKED", "tell event");
    actor_say(&consumer, "ok done", "tell release");
    wait_stat(&other, "leases", 0);
}

static void S2_8_a_childs_end_is_the_end_of_what_it_inherited(void **state)
{
    (void)state;
    actor server, consumer, other;
    start_server(&server);
    record(&server, "held", 10);
    start_consumer(&consumer);
    start_consumer(&other);
    actor_say(&consumer, "ok held", "open held 1");
    int child = atoi(actor_say(&consumer, "ok ", "child") + 3);
    actor_say(&consumer, "ok good", "tell fork"); /* the grandchild has it from the child */
    actor_say(&consumer, "ok", "release");
    kill(child, SIGKILL);
    free_and_write_over(&server, &other, "held");
    actor_say(&consumer, "ok good", "tell verify");
    assert_int_equal(stat_of(&other, "leases"), 1);
    actor_say(&consumer, "ok done", "tell release");
    wait_stat(&other, "leases", 0);
    /* killed, child or parent, is ended: each lease waits for the other of the two */
    record(&server, "second", 10);
    actor_say(&consumer, "ok second", "open second 1");
    child = atoi(actor_say(&consumer, "ok ", "child") + 3);
    kill(child, SIGKILL);
    actor_say(&consumer, "ok good", "verify");
    assert_int_equal(stat_of(&other, "leases"), 1);
    actor_say(&consumer, "ok", "release");
    wait_stat(&other, "leases", 0);
    actor_say(&consumer, "ok second", "open second 1");
    child = atoi(actor_say(&consumer, "ok ", "child") + 3);
    actor_say(&consumer, "ok done", "tell stay");
    actor_kill(&consumer);
    assert_int_equal(stat_of(&other, "leases"), 1);
    kill(child, SIGKILL);
    wait_stat(&other, "leases", 0);
}

static void S2_8_forks_while_other_threads_open(void **state)
{
    (void)state;
    actor server, consumer, other;
    start_server(&server);
    record(&server, "held", 10);
    record(&server, "raced", 64);
    start_consumer(&consumer);
    start_consumer(&other);
    actor_say(&consumer, "ok held", "open held 1");
    actor_say(&consumer, "ok failed=0", "race raced 4 100 30");
    actor_say(&consumer, "ok good", "verify");
    actor_say(&consumer, "ok", "release"); /* the last of what was open at the first fork */
    wait_stat(&other, "leases", 0);
}

/* By its ref, and for one that was opened for this process alone. */
static void S2_8_a_resolved_record_is_inherited_and_a_private_one_is_not(void **state)
{
    (void)state;
    actor server, consumer, other;
    start_server(&server);
    record(&server, "held", 10);
    start_consumer(&consumer);
    start_consumer(&other);
    actor_say(&other, "ok held", "open held 1");
    char ref[300];
    snprintf(ref, sizeof(ref), "%s", actor_say(&other, "ok moor1:", "ref") + 3);
    actor_say(&other, "ok", "release");
    actor_say(&consumer, "ok held", "open_private held 1");
    actor_say(&consumer, "ok ", "child");
    actor_say(&consumer, "ok MOOR_E_FORKED", "tell verify");
    actor_say(&consumer, "ok", "release");
    wait_stat(&other, "leases", 0); /* the child has it not */
    actor_say(&consumer, "ok held", "resolve %s", ref);
    actor_say(&consumer, "ok ", "child");
    actor_say(&consumer, "ok", "release");
    free_and_write_over(&server, &other, "held");
    actor_say(&consumer, "ok good", "tell verify");
    actor_say(&consumer, "ok done", "tell release");
    wait_stat(&other, "leases", 0);
}

/* A session ends with its client, which a fork with records open, and their release, does not end. */
static void S2_8_a_fork_ends_no_session(void **state)
{
    (void)state;
    actor server, consumer, other;
    start_server(&server);
    record(&server, "first", 10);
    start_consumer(&consumer);
    start_consumer(&other);
    actor_say(&consumer, "ok first", "open first 1");
    actor_say(&consumer, "ok", "insert one");
    actor_say(&consumer, "ok ", "child");
    actor_say(&consumer, "MOOR_E_STATE session two: request first belongs to session one",
              "insert two"); /* its store is found */
    actor_say(&consumer, "ok", "release");
    actor_say(&consumer, "ok done", "tell release");
    wait_stat(&other, "leases", 0);
    assert_int_equal(stat_of(&other, "session_keys"), 1);
    actor_kill(&consumer);
    wait_stat(&other, "session_keys", 0);
}

/* A child that inherited the connections must not keep them open after its parent was killed, on either side, unless records are open. */
static void a_surviving_child_keeps_no_connection(void **state)
{
    (void)state;
    actor server, consumer, watcher;
    start_server(&server);
    record(&server, "held", 10);
    start_consumer(&consumer);
    start_consumer(&watcher);
    int child = atoi(actor_say(&consumer, "ok ", "child") + 3),
        child_of_server = atoi(actor_say(&server, "ok ", "child") + 3);
    actor_say(&consumer, "ok done", "tell stay");
    actor_say(&server, "ok done", "tell stay");
    actor_say(&consumer, "ok held", "open held 1");
    wait_stat(&watcher, "leases", 1);
    assert_int_equal(kill(child, 0), 0);
    actor_kill(&consumer);
    assert_int_equal(kill(child, 0), 0);
    wait_stat(&watcher, "leases", 0);
    nanosleep(&(struct timespec){.tv_nsec = 200000000},
              NULL);             /* until the directory's time tells of all that is in it: */
    stat_of(&watcher, "leases"); /* from now on only the connection says that the server is gone */
    actor_kill(&server);
    actor_say(&watcher, "MOOR_E_CLOSED", "open held 0");
    assert_null(strstr(watcher.line, "in time")); /* the end of the connection was seen, not only waited for */
    kill(child, SIGKILL);
    kill(child_of_server, SIGKILL);
}

static void freed_is_stale_and_a_reader_reads_on(void **state)
{
    (void)state;
    actor server, consumer, two;
    start_server(&server);
    record(&server, "gone", 10);
    start_consumer(&consumer);
    start_consumer(&two);
    actor_say(&consumer, "ok gone", "open gone 1");
    actor_say(&two, "ok gone", "open gone 1");
    actor_say(&two, "ok", "event 2"); /* discard, owner rollout: freed (SEMANTICS 2) */
    actor_say(&two, "MOOR_E_STALE", "event 2");
    actor_say(&consumer, "ok good", "verify");
    actor_say(&two, "MOOR_E_NOT_FOUND", "open gone 0");
    actor_say(&consumer, "ok", "release");
    actor_say(&two, "ok", "release");
    wait_stat(&two, "live_bytes", 0);
}

static void records_outlive_detach_and_server(void **state)
{
    (void)state;
    actor server, consumer, early, watcher;
    start_server(&server);
    record(&server, "kept", 50);
    start_consumer(&consumer);
    start_consumer(&early);
    start_consumer(&watcher);
    actor_say(&early, "ok kept", "open kept 1");
    actor_say(&early, "ok", "detach");
    assert_int_equal(stat_of(&watcher, "leases"), 1);
    actor_say(&early, "ok", "release");
    wait_stat(&watcher, "leases", 0);
    actor_say(&consumer, "ok kept", "open kept 1");
    actor_kill(&server);
    actor_say(&consumer, "ok good", "verify");
    actor_say(&consumer, "MOOR_E_CLOSED", "open kept 1");
    actor_say(&consumer, "MOOR_E_CLOSED", "gate status");
    actor_say(&consumer, "ok", "detach");
    actor_say(&consumer, "ok good", "verify");
    actor_say(&consumer, "ok", "release");
    /* the next server of that name is found by attaching again */
    start_server(&server);
    record(&server, "new", 5);
    actor_say(&consumer, "ok", "attach default 5");
    actor_say(&consumer, "ok new", "open new 1");
}

static void a_replaced_worker_is_found_again(void **state)
{
    (void)state;
    actor first, worker, consumer;
    actor_start(&first, NULL);
    actor_say(&first, "ok default ", "join {}"); /* keeps the instance alive */
    start_another(&worker, 0);
    record(&worker, "one", 4);
    start_consumer(&consumer);
    actor_say(&consumer, "ok one", "open one 1");
    actor_kill(&worker);
    actor_say(&consumer, "MOOR_E_", "open one 0");
    start_another(&worker, 0);
    record(&worker, "two", 4);
    actor_say(&consumer, "ok two", "open two 2");
    actor_say(&first, "MOOR_E_EXISTS", "store 0");
}

static void stores_of_replicas_are_asked_all(void **state)
{
    (void)state;
    actor zero, one, consumer;
    start_server(&zero);
    start_another(&one, 1);
    record(&zero, "at-zero", 4);
    start_consumer(&consumer);
    actor_say(&consumer, "ok at-zero rows=4 missing=0 segments=1 versions=1 store=0", "open at-zero 1");
    actor_say(&one, "ok", "step at-one 0 6");
    actor_send(&consumer, "open at-one 5");
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    actor_say(&one, "ok", "seal at-one 6 1");
    actor_hear(&consumer, "ok at-one rows=6 missing=0 segments=1 versions=1 store=1");
    actor_say(&consumer, "MOOR_E_NOT_FOUND", "open at-none 0.05");
    /* one id at two replicas (a repeated X-Request-Id) */
    record(&zero, "twice", 2);
    actor_say(&one, "ok", "step twice 0 3");
    actor_say(&one, "ok", "seal twice 3 1");
    actor_say(&consumer, "MOOR_E_AMBIGUOUS id twice means several records: twice (store 0), twice (store 1)",
              "open twice 1");
    actor_say(&consumer, "ok twice twice", "open_all twice 1");
    /* sealed at one replica, still running at the other: neither the first alone nor half of them all */
    record(&zero, "half", 2);
    actor_say(&one, "ok", "step half 0 3");
    actor_say(&consumer, "MOOR_E_TIMEOUT", "open_all half 0.05");
    actor_say(&consumer, "MOOR_E_TIMEOUT", "open half 0.05");
    actor_send(&consumer, "open_all half 10");
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    actor_say(&one, "ok", "seal half 3 1");
    actor_hear(&consumer, "ok half half");
    actor_kill(&one);
    actor_say(&consumer, "ok at-zero", "open at-zero 1");
}

/* A directory's time ticks in steps: two stores may appear in one, with the consumer's look between them. */
static void a_store_that_appears_in_the_same_tick_is_found(void **state)
{
    (void)state;
    actor zero, one, consumer;
    char path[128];
    struct timespec tick[2];
    snprintf(path, sizeof(path), "%s/default", actors_dir);
    start_server(&zero);
    record(&zero, "at-zero", 4);
    clock_gettime(CLOCK_REALTIME, &tick[0]);
    tick[0].tv_sec += 3600; /* "now", however long the rest takes */
    tick[1] = tick[0];
    assert_int_equal(utimensat(AT_FDCWD, path, tick, 0), 0);
    start_consumer(&consumer);
    actor_say(&consumer, "ok at-zero", "open at-zero 1");
    start_another(&one, 1);
    assert_int_equal(utimensat(AT_FDCWD, path, tick, 0), 0);
    actor_say(&one, "ok", "step at-one 0 6");
    actor_say(&one, "ok", "seal at-one 6 1");
    actor_say(&consumer, "ok at-one rows=6", "open at-one 1");
}

static void a_stopped_server_is_given_up_in_time(void **state)
{
    (void)state;
    actor server, consumer, other;
    start_server(&server);
    record(&server, "x", 4);
    start_consumer(&consumer);
    actor_say(&consumer, "ok x", "open x 1");
    actor_stop(&server);
    double begin = now_s();
    actor_say(
        &consumer,
        "MOOR_E_CLOSED the connection to store 0 of instance \"default\" is closed: the store did not answer in time",
        "open x 0");
    assert_true(now_s() - begin >= 4.9);
    actor_say(&consumer, "MOOR_E_TIMEOUT request x is not known", "open x 0");
    assert_non_null(strstr(consumer.line, ": store 0 of instance \"default\" does not answer"));
    actor_say(&consumer, "ok good", "verify");
    kill(server.pid, SIGCONT);
    /* The record's lease was not given up with the calls: what is freed now is not written over while it is read. */
    start_consumer(&other);
    actor_say(&other, "ok x", "open x 1");
    actor_say(&other, "ok", "event 2");
    actor_say(&other, "ok", "release");
    for (int i = 0; i < 50; i++) {
        char id[8];
        snprintf(id, sizeof(id), "y%d", i);
        record(&server, id, 4);
    }
    actor_say(&consumer, "ok good", "verify");
    actor_say(&consumer, "ok y1", "open y1 1");
    actor_say(&consumer, "ok", "release");
    wait_stat(&other, "leases", 0);
}

/* It is waited for once, by whoever asks first. Then it is left out until it stirs, and whatever may be in it is said not to be known. */
static void a_store_that_hangs_is_waited_for_once(void **state)
{
    (void)state;
    actor one, two, consumer;
    static const char silent[] = ": store 0 of instance \"default\" does not answer";
    start_server(&one);
    start_another(&two, 1);
    record(&one, "at-zero", 4);
    actor_say(&two, "ok", "step at-one 0 6");
    actor_say(&two, "ok", "seal at-one 6 1");
    start_consumer(&consumer);
    actor_say(&consumer, "ok at-zero", "open at-zero 1");
    actor_stop(&one);
    double begin = now_s();
    actor_say(&consumer, "ok at-one", "open at-one 0");
    double first = now_s() - begin;
    begin = now_s();
    for (int i = 0; i < 20; i++)
        actor_say(&consumer, "ok at-one", "open at-one 0");
    for (int i = 0; i < 5; i++) {
        actor_say(&consumer, "MOOR_E_TIMEOUT", "open at-zero 0.1");
        assert_non_null(strstr(consumer.line, silent));
    }
    static const char *const others[] = {"open_all at-one 0", "save 1 /tmp/none", "truncate at-zero 1"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        actor_say(&consumer, "MOOR_E_TIMEOUT", "%s", others[i]);
        assert_non_null(strstr(consumer.line, silent));
    }
    actor_say(&consumer, "ok", "stats");
    assert_non_null(strstr(consumer.line, "does not answer"));
    if (now_s() - begin >= first) /* one that is waited for once more takes as long as the first */
        fail_msg("the first %.1f s, all others %.1f s", first, now_s() - begin);
    actor_say(&consumer, "MOOR_E_TIMEOUT",
              "insert session"); /* over connections of their own, which ask by themselves */
    assert_non_null(strstr(consumer.line, silent));
    kill(one.pid, SIGCONT);
    actor_say(&consumer, "ok at-zero", "open at-zero 15");
    actor_say(&consumer, "ok at-one", "open_all at-one 1");
    /* and one that is killed while it hangs is gone, not silent */
    actor_stop(&one);
    actor_say(&consumer, "ok at-one", "open at-one 0");
    actor_say(&consumer, "MOOR_E_TIMEOUT", "open at-zero 0");
    actor_kill(&one);
    actor_say(&consumer, "MOOR_E_NOT_FOUND", "open at-zero 1");
}

/* ---- snapshot --------------------------------------------------------------------------------------------------- */

static void S2_6_a_consumer_asks_and_a_new_server_has_it_all(void **state)
{
    (void)state;
    actor one, two, consumer;
    char target[128];
    snprintf(target, sizeof(target), "%s/snapshot", actors_dir);
    start_server(&one);
    start_another(&two, 1);
    record(&one, "at-zero", 10);
    actor_say(&two, "ok", "step at-one 0 7");
    start_consumer(&consumer);
    actor_say(&consumer, "ok at-zero", "open at-zero 1"); /* leases are no part of it */
    actor_say(&consumer, "MOOR_E_STATE snapshot: 1 requests are not sealed: at-one", "save 5 %s", target);
    actor_say(&two, "ok", "seal at-one 7 1");
    actor_say(&consumer, "MOOR_E_IO snapshot directory /proc/no/such", "save 5 /proc/no/such");
    actor_say(&consumer, "ok", "save 5 %s", target);
    actor_say(&consumer, "ok good", "verify");
    actor_kill(&one);
    actor_kill(&two);
    actor again, other;
    actor_start(&again, NULL);
    actor_say(&again, "ok default ", "join {\"record\":{\"restore\":\"%s\"}}", target);
    actor_say(&again, "ok", "store 0");
    actor_start(&other, "MOOR_INSTANCE=default", NULL);
    actor_say(&other, "ok default ", "join {\"record\":{\"restore\":\"%s\"}}", target);
    actor_say(&other, "ok", "store 1");
    actor_say(&other, "MOOR_E_CONFIG \"record.restore\": snapshot", "store 2");
    actor reader;
    start_consumer(&reader);
    actor_say(&reader, "ok at-zero", "open at-zero 1");
    actor_say(&reader, "ok good", "verify");
    actor_say(&reader, "ok", "release");
    actor_say(&reader, "ok at-one", "open at-one 1");
    actor_say(&reader, "ok good", "verify");
    for (int i = 0; i < 2; i++) {
        char file[160];
        snprintf(file, sizeof(file), "%s/store-%d.moor", target, i);
        assert_int_equal(unlink(file), 0);
    }
    assert_int_equal(rmdir(target), 0);
}

/* ---- finding ---------------------------------------------------------------------------------------------------- */

static void attach_lists_what_it_found(void **state)
{
    (void)state;
    actor a, b, consumer;
    char xdg[200], name[64], runtime[160];
    snprintf(name, sizeof(name), "moor-test-%d", (int)getpid());
    snprintf(runtime, sizeof(runtime), "%s/run", actors_dir);
    assert_int_equal(mkdir(runtime, 0700), 0);
    snprintf(xdg, sizeof(xdg), "XDG_RUNTIME_DIR=%s", runtime);
    actor_start(&a, "MOOR_DIR", xdg, NULL);
    actor_say(&a, "ok moor-test", "join {\"instance\":\"%s\"}", name);
    actor_start(&b, "MOOR_DIR", NULL);
    actor_say(&b, "ok moor-test", "join {\"instance\":\"%s\"}", name); /* /dev/shm/moor-UID */
    actor_start(&consumer, "MOOR_DIR", xdg, NULL);
    actor_say(&consumer, "MOOR_E_AMBIGUOUS", "attach %s 0", name);
    assert_non_null(strstr(consumer.line, runtime));
    actor_say(&consumer, "MOOR_E_NOT_FOUND no live instance \"nobody\"", "attach nobody 0.05");
    assert_non_null(strstr(consumer.line, name));
    actor_exit(&b);
    actor_say(&consumer, "ok", "attach %s 0", name);
    actor_exit(&a);
}

static void attach_waits_for_a_server(void **state)
{
    (void)state;
    actor server, consumer;
    actor_start(&consumer, NULL);
    actor_send(&consumer, "attach default 10");
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    start_server(&server);
    actor_hear(&consumer, "ok");
    record(&server, "x", 2);
    actor_say(&consumer, "ok x", "open x 1");
}

/* Looking at one's own instance opens no second descriptor of `locks`: closing it would give up the server's locks. */
static void a_server_may_be_its_own_consumer(void **state)
{
    (void)state;
    actor server, other;
    start_server(&server);
    record(&server, "x", 4);
    actor_say(&server, "ok", "attach default 1");
    actor_say(&server, "ok x", "open x 1");
    actor_say(&server, "ok", "gate status");
    actor_say(&server, "ok", "stats");
    actor_say(&server, "ok", "release");
    actor_say(&server, "ok", "detach");
    actor_start(&other, NULL);
    actor_say(&other, "MOOR_E_EXISTS", "join {\"instance\":\"default\"}");
}

static void consumers_do_not_keep_a_dead_server_alive(void **state)
{
    (void)state;
    actor server, consumer, next;
    start_server(&server);
    start_consumer(&consumer);
    actor_say(&consumer, "ok", "gate status"); /* takes a slot as a visitor */
    actor_kill(&server);
    actor_start(&next, NULL);
    actor_say(&next, "ok default ", "join {\"instance\":\"default\"}");
    actor_say(&next, "ok", "leave");
    assert_int_equal(files_in(actors_dir), 0);
}

static void closing_removes_socket_and_thread(void **state)
{
    (void)state;
    actor server;
    char path[128];
    start_server(&server);
    snprintf(path, sizeof(path), "%s/default/store-0.sock", actors_dir);
    assert_int_equal(access(path, F_OK), 0);
    snprintf(path, sizeof(path), "/proc/%d/task", (int)server.pid);
    int threads = files_in(path);
    actor_say(&server, "ok", "close");
    assert_int_equal(files_in(path), threads - 1);
    actor_say(&server, "ok", "store 0");
    actor_say(&server, "ok", "close");
    snprintf(path, sizeof(path), "%s/default/store-0.sock", actors_dir);
    assert_int_equal(access(path, F_OK), -1);
    actor_say(&server, "ok", "leave");
    assert_int_equal(files_in(actors_dir), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, actors_begin, actors_end)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_consumer_reads_what_was_recorded),
        TEST(an_open_waits_for_the_seal),
        TEST(S1_21_an_open_does_not_wait_where_nothing_is_recorded),
        TEST(siblings_open_in_index_order),
        TEST(a_large_reply_travels_in_a_memfd),
        TEST(threads_share_a_connection),
        TEST(refs_resolve_and_never_to_another_server),
        TEST(a_ref_of_a_store_that_hangs),
        TEST(a_ref_of_a_dead_store_costs_no_other_ref_its_lease),
        TEST(a_killed_consumer_leaves_no_lease),
        TEST(a_forked_child_has_the_records_and_nothing_else),
        TEST(S2_8_a_forked_child_reads_its_rows_whatever_the_parent_does),
        TEST(S2_8_a_childs_end_is_the_end_of_what_it_inherited),
        TEST(S2_8_a_fork_ends_no_session),
        TEST(S2_8_forks_while_other_threads_open),
        TEST(S2_8_a_resolved_record_is_inherited_and_a_private_one_is_not),
        TEST(a_surviving_child_keeps_no_connection),
        TEST(freed_is_stale_and_a_reader_reads_on),
        TEST(records_outlive_detach_and_server),
        TEST(a_replaced_worker_is_found_again),
        TEST(stores_of_replicas_are_asked_all),
        TEST(a_store_that_appears_in_the_same_tick_is_found),
        TEST(a_stopped_server_is_given_up_in_time),
        TEST(a_store_that_hangs_is_waited_for_once),
        TEST(S2_6_a_consumer_asks_and_a_new_server_has_it_all),
        TEST(attach_lists_what_it_found),
        TEST(attach_waits_for_a_server),
        TEST(a_server_may_be_its_own_consumer),
        TEST(consumers_do_not_keep_a_dead_server_alive),
        TEST(closing_removes_socket_and_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
