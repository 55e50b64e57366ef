/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/peer.c without sockets: opens that wait, and what a slow or hostile consumer can make of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "allocator/heap.h"
#include "hooks/process.h"
#include "plugin/peer.h"
#include "plugin/process.h"

static char dir[32];
static moor_process *process;
static moor_store *store;
static moor_peer *peer;
static moor_peer_home home;
static const int32_t layer_ids[1] = {0};

static int begin(void **state)
{
    (void)state;
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    moor_store_args store_args = MOOR_STORE_ARGS_INIT;
    strcpy(dir, "/tmp/moor-peer-XXXXXX");
    unsetenv("MOOR_INSTANCE");
    if (!mkdtemp(dir) || setenv("MOOR_DIR", dir, 1) || moor_process_join(NULL, &args, &process))
        return -1;
    store_args.layers = store_args.model_layers = 1;
    store_args.top_k = 1;
    store_args.num_experts = 8;
    store_args.layer_ids = layer_ids;
    store_args.max_step_tokens = 8;
    store_args.arena_bytes = 8u << 20;
    if (moor_recorder_create(process, &store_args, &store))
        return -1;
    home = (moor_peer_home){store, 1, 1, 1, 8, 1, layer_ids, NULL};
    return moor_peer_create(&home, 7, &peer);
}

static int end(void **state)
{
    (void)state;
    moor_peer_destroy(peer);
    moor_recorder_destroy(store);
    moor_process_leave(process);
    return rmdir(dir);
}

static void record(const char *id)
{
    uint8_t expert = 3;
    moor_step_request request = {.id = id, .id_len = (uint32_t)strlen(id), .count = 1};
    moor_ids ids = {.data = &expert, .dtype = MOOR_DTYPE_U8, .tokens = 1, .top_k = 1};
    assert_int_equal(moor_step_begin(store, &request, 1), MOOR_OK);
    assert_int_equal(moor_capture(store, 0, &ids, NULL), MOOR_OK);
    assert_int_equal(moor_step_commit(store, NULL, 0), MOOR_OK);
}

static moor_status send_hello(void)
{
    struct {
        moor_wire_header header;
        moor_wire_hello hello;
    } message = {{sizeof(message), MOOR_WIRE_HELLO, 0, 1, 0}, {MOOR_WIRE_MAGIC, MOOR_WIRE_VERSION, 1, 0}};
    return moor_peer_input(peer, &message, sizeof(message), 0);
}

static moor_status send_open(uint32_t tag, char id, uint64_t timeout_ns)
{
    struct {
        moor_wire_header header;
        moor_wire_open open;
        char id[8];
    } message = {{sizeof(message) - 7, MOOR_WIRE_OPEN, 0, tag, 0}, {timeout_ns, 0, 0, 1}, {id}};
    return moor_peer_input(peer, &message, message.header.length, 0);
}

/* Takes the first reply off; its tag must be this. Returns its status. */
static int reply(uint32_t tag)
{
    moor_wire_header header;
    moor_peer_reply *first = moor_peer_first(peer);
    assert_non_null(first);
    memcpy(&header, first->data, sizeof(header));
    assert_int_equal(header.tag, tag);
    moor_peer_sent(peer, first->length);
    return header.status;
}

static uint64_t leases(void)
{
    moor_records_stats stats;
    moor_records_stats_get(store->records, &stats);
    return stats.leases;
}

static void a_seal_between_look_and_sleep_is_not_missed(void **state)
{
    (void)state;
    assert_int_equal(send_hello(), MOOR_OK);
    assert_int_equal(reply(1), MOOR_OK);
    record("a");
    assert_int_equal(send_open(2, 'a', 1000), MOOR_OK);
    assert_null(moor_peer_first(peer));
    assert_int_equal(moor_records_seal(store->records, moor_id_hash("a", 1), 1, 0), MOOR_OK);
    moor_peer_retry(peer, 1, 0); /* nobody says that anything is new, and it is not late yet */
    assert_int_equal(reply(2), MOOR_OK);
    assert_int_equal(moor_peer_waiting(peer), 0);
    assert_int_equal(leases(), 1);
}

static void deadlines_are_kept_each(void **state)
{
    (void)state;
    send_hello();
    reply(1);
    assert_int_equal(send_open(2, 'x', 300), MOOR_OK);
    assert_int_equal(send_open(3, 'y', 100), MOOR_OK);
    assert_int_equal(send_open(4, 'z', UINT64_MAX), MOOR_OK);
    assert_int_equal(send_open(5, 'z', 0), MOOR_OK);
    assert_int_equal(reply(5), MOOR_E_NOT_FOUND);
    moor_peer_retry(peer, 50, 1);
    assert_int_equal(moor_peer_waiting(peer), 3);
    assert_int_equal(moor_peer_next_deadline(peer), 100);
    moor_peer_retry(peer, 100, 0);
    assert_int_equal(reply(3), MOOR_E_NOT_FOUND);
    moor_peer_retry(peer, 1000, 0);
    assert_int_equal(reply(2), MOOR_E_NOT_FOUND);
    assert_int_equal(moor_peer_waiting(peer), 1);
    assert_int_equal(moor_peer_next_deadline(peer), UINT64_MAX);
    assert_int_equal(process->state->counters[MOOR_C_OPEN_ERRORS], 0); /* "not yet" is no refusal */
}

static void waiting_opens_are_bounded(void **state)
{
    (void)state;
    send_hello();
    reply(1);
    for (uint32_t i = 0; i < MOOR_PEER_MAX_WAITING; i++)
        assert_int_equal(send_open(i + 2, 'x', 1000), MOOR_OK);
    assert_null(moor_peer_first(peer));
    assert_int_equal(send_open(9, 'x', 1000), MOOR_OK);
    assert_int_equal(reply(9), MOOR_E_FULL);
    assert_int_equal(moor_peer_waiting(peer), MOOR_PEER_MAX_WAITING);
    assert_int_equal(process->state->counters[MOOR_C_OPEN_ERRORS], 1);
}

static void a_second_greeting_ends_the_connection(void **state)
{
    (void)state;
    assert_int_equal(moor_peer_greeted(peer), 0);
    assert_int_equal(send_hello(), MOOR_OK);
    assert_int_equal(moor_peer_greeted(peer), 1);
    assert_int_equal(send_hello(), MOOR_E_CORRUPT);
}

static void leases_end_with_the_peer(void **state)
{
    (void)state;
    send_hello();
    record("a");
    moor_records_seal(store->records, moor_id_hash("a", 1), 1, 0);
    assert_int_equal(send_open(2, 'a', 0), MOOR_OK);
    assert_int_equal(send_open(3, 'a', 0), MOOR_OK);
    assert_int_equal(leases(), 2);
    moor_peer_destroy(peer); /* with replies still queued */
    assert_int_equal(leases(), 0);
    assert_int_equal(moor_peer_create(&home, 8, &peer), MOOR_OK);
}

/* ---- requests in pieces ------------------------------------------------------------------------------------------ */

static moor_status send_piece(uint16_t type, uint32_t tag, int more, const void *data, size_t n)
{
    moor_wire_header header = {
        .length = (uint32_t)(sizeof(header) + n), .type = type, .flags = more ? MOOR_WIRE_MORE : 0, .tag = tag};
    moor_status status = moor_peer_input(peer, &header, sizeof(header), 0);
    return status || !n ? status : moor_peer_input(peer, data, n, 0);
}

/* A request to insert key "k" of session "s" with one token; one byte too many or too few with `off`. */
static size_t insert_body(unsigned char *out, int off)
{
    moor_wire_session head = {.start = 0,
                              .length = UINT64_MAX,
                              .id_len = 1,
                              .key_len = (uint32_t)(1 + off),
                              .n_tokens = 1,
                              .flags = MOOR_WIRE_TOKENS | MOOR_WIRE_CREATE};
    const int32_t token = 5;
    memcpy(out, &head, sizeof(head));
    memcpy(out + sizeof(head), &token, sizeof(token));
    memcpy(out + sizeof(head) + sizeof(token), "sk", 2);
    return sizeof(head) + sizeof(token) + 2;
}

static void S3_a_request_in_pieces_is_one_request(void **state)
{
    (void)state;
    unsigned char body[64];
    size_t n = insert_body(body, 0);
    moor_records_stats stats;
    send_hello();
    reply(1);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(send_piece(MOOR_WIRE_SESSION_INSERT, 2, i + 1 < n, body + i, 1), MOOR_OK);
    assert_int_equal(reply(2), MOOR_OK);
    moor_records_stats_get(store->records, &stats);
    assert_int_equal(stats.session_keys, 1);
    assert_int_equal(send_piece(MOOR_WIRE_SESSION_INSERT, 3, 0, body, n), MOOR_OK); /* and whole ones go on */
    assert_int_equal(reply(3), MOOR_OK);
    moor_peer_destroy(peer); /* in the middle of another one: its session goes, too */
    assert_int_equal(moor_peer_create(&home, 8, &peer), MOOR_OK);
    moor_records_stats_get(store->records, &stats);
    assert_int_equal(stats.sessions, 0);
}

static void pieces_that_are_none_end_the_connection(void **state)
{
    (void)state;
    unsigned char body[64];
    size_t n = insert_body(body, 0);
    assert_int_equal(send_piece(MOOR_WIRE_SESSION_INSERT, 1, 1, body, 10), MOOR_E_CORRUPT); /* before the greeting */
    for (int wrong = 0; wrong < 5; wrong++) {
        moor_peer_destroy(peer);
        assert_int_equal(moor_peer_create(&home, 10 + (uint64_t)wrong, &peer), MOOR_OK);
        send_hello();
        reply(1);
        if (wrong == 0) { /* only requests about sessions */
            assert_int_equal(send_piece(MOOR_WIRE_OPEN, 2, 1, body, 10), MOOR_E_CORRUPT);
            continue;
        }
        assert_int_equal(send_piece(MOOR_WIRE_SESSION_INSERT, 2, 1, body, 10), MOOR_OK);
        if (wrong == 1) /* another message between */
            assert_int_equal(send_open(3, 'a', 0), MOOR_E_CORRUPT);
        else if (wrong == 2)
            assert_int_equal(send_piece(MOOR_WIRE_SESSION_INSERT, 3, 0, body + 10, n - 10), MOOR_E_CORRUPT);
        else if (wrong == 3)
            assert_int_equal(send_piece(MOOR_WIRE_SESSION_KEYS, 2, 0, body + 10, n - 10), MOOR_E_CORRUPT);
        else
            assert_int_equal(send_piece(MOOR_WIRE_SESSION_INSERT, 2, 0, body + 10, n - 11), MOOR_E_CORRUPT);
    }
}

static void lengths_inside_a_request_must_add_up(void **state)
{
    (void)state;
    unsigned char body[64];
    for (int off = -1; off <= 1; off += 2) {
        send_hello();
        size_t n = insert_body(body, off);
        assert_int_equal(send_piece(MOOR_WIRE_SESSION_INSERT, 2, 0, body, n), MOOR_E_CORRUPT);
        moor_peer_destroy(peer);
        assert_int_equal(moor_peer_create(&home, 20 + (uint64_t)off, &peer), MOOR_OK);
    }
}

static void a_request_has_an_end(void **state)
{
    (void)state;
    static unsigned char bytes[60000];
    moor_status status = MOOR_OK;
    uint64_t sent = 0;
    send_hello();
    while (!status && sent < 2ull * MOOR_WIRE_REQUEST_LIMIT) {
        status = send_piece(MOOR_WIRE_SESSION_SEARCH, 2, 1, bytes, sizeof(bytes));
        sent += sizeof(bytes);
    }
    assert_int_equal(status, MOOR_E_CORRUPT);
    assert_true(sent > MOOR_WIRE_REQUEST_LIMIT);
}

/* ---- without memory ---------------------------------------------------------------------------------------------- */

static moor_status send_stats(uint32_t tag)
{
    moor_wire_header header = {sizeof(header), MOOR_WIRE_STATS, 0, tag, 0};
    return moor_peer_input(peer, &header, sizeof(header), 0);
}

static moor_status send_handle(uint16_t type, uint32_t tag, uint64_t handle, uint32_t value)
{
    struct {
        moor_wire_header header;
        moor_wire_handle handle;
    } message = {{sizeof(message), type, 0, tag, 0}, {handle, value, 0}};
    return moor_peer_input(peer, &message, sizeof(message), 0);
}

static moor_status send_insert(uint32_t tag)
{
    unsigned char body[64];
    size_t n = insert_body(body, 0), half = n / 2;
    moor_status status = send_piece(MOOR_WIRE_SESSION_INSERT, tag, 1, body, half);
    return status ? status : send_piece(MOOR_WIRE_SESSION_INSERT, tag, 0, body + half, n - half);
}

static moor_status ask(int what, uint32_t tag, uint64_t handle)
{
    switch (what) {
    case 0:
        return send_open(tag, 'a', 0);
    case 1:
        return send_open(tag, 'w', 1000); /* waits */
    case 2:
        return send_stats(tag);
    case 3:
        return send_handle(MOOR_WIRE_OPEN_HANDLE, tag, handle, 0);
    case 4:
        return send_handle(MOOR_WIRE_CLAIM, tag, handle, MOOR_OWNER_TRACE_STORE);
    default:
        return send_insert(tag);
    }
}

/* One request while every allocation from the nth on (or the nth alone) fails; then there is memory again. Exactly one answer comes, what
 * it says is so, and the connection stands. 1: the failure was met. */
static int asked_without_memory(int what, uint32_t tag, uint64_t handle, uint64_t nth, int stays)
{
    uint64_t before = leases();
    if (stays)
        moor_fault_arm_from(nth);
    else
        moor_fault_arm(nth);
    assert_int_equal(ask(what, tag, handle), MOOR_OK);
    assert_int_equal(send_stats(tag + 1), MOOR_OK);
    moor_peer_retry(peer, 2000, 1); /* late */
    int fired = moor_fault_fired();
    moor_fault_arm(0);
    assert_int_equal(moor_peer_input(peer, NULL, 0, 0), MOOR_OK);
    assert_false(moor_peer_starved(peer));
    moor_peer_retry(peer, UINT64_MAX, 1);
    assert_int_equal(moor_peer_waiting(peer), 0);
    int opened = 0;
    for (int left = 3, i = 0; i < 2; i++) {
        moor_wire_header header;
        moor_peer_reply *first = moor_peer_first(peer);
        assert_non_null(first);
        memcpy(&header, first->data, sizeof(header));
        assert_true(header.tag == tag || header.tag == tag + 1);
        left &= ~(header.tag == tag ? 1 : 2);
        assert_true(left != 3 && (i == 0 || left == 0)); /* each once */
        if (header.status && header.status != MOOR_E_NOMEM &&
            !(what == 1 && header.tag == tag && header.status == MOOR_E_NOT_FOUND))
            fail_msg("request %d: status %d", what, header.status);
        opened += header.tag == tag && !header.status && (what == 0 || what == 3);
        moor_peer_sent(peer, first->length);
    }
    assert_null(moor_peer_first(peer));
    assert_int_equal(leases(), before + (uint64_t)opened);
    if (opened)
        send_handle(MOOR_WIRE_RELEASE, 0, handle, 0);
    return fired;
}

static void S2_5_no_memory_for_a_reply_neither_closes_nor_leaks(void **state)
{
    (void)state;
    uint32_t tag = 10;
    uint64_t handle;
    send_hello();
    reply(1);
    record("a");
    moor_records_seal(store->records, moor_id_hash("a", 1), 1, 0);
    assert_int_equal(moor_records_find(store->records, "a", 1, &handle), MOOR_OK);
    assert_int_equal(send_open(2, 'a', 0), MOOR_OK); /* it is being read meanwhile */
    assert_int_equal(reply(2), MOOR_OK);
    for (int what = 0; what < 6; what++)
        for (int stays = 0; stays < 2; stays++) {
            uint64_t nth = 1;
            while (asked_without_memory(what, tag, handle, nth, stays))
                nth++, tag += 2;
            assert_true(nth > 1);
        }
    assert_int_equal(leases(), 1);
}

/* More than the spare answer is good for: they wait in the input, in order. */
static void requests_without_memory_for_an_answer_wait(void **state)
{
    (void)state;
    send_hello();
    reply(1);
    moor_fault_arm_from(1);
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(send_open(2 + i, 'x', 0), MOOR_OK);
    assert_true(moor_peer_starved(peer));
    assert_int_equal(moor_peer_input(peer, NULL, 0, 0), MOOR_OK);
    moor_fault_arm(0);
    assert_int_equal(moor_peer_input(peer, NULL, 0, 0), MOOR_OK);
    for (uint32_t i = 0; i < 100; i++) {
        int status = reply(2 + i);
        assert_true(status == MOOR_E_NOT_FOUND || status == MOOR_E_NOMEM);
    }
    assert_null(moor_peer_first(peer));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_seal_between_look_and_sleep_is_not_missed),
        TEST(deadlines_are_kept_each),
        TEST(waiting_opens_are_bounded),
        TEST(a_second_greeting_ends_the_connection),
        TEST(leases_end_with_the_peer),
        TEST(S3_a_request_in_pieces_is_one_request),
        TEST(pieces_that_are_none_end_the_connection),
        TEST(lengths_inside_a_request_must_add_up),
        TEST(a_request_has_an_end),
        TEST(S2_5_no_memory_for_a_reply_neither_closes_nor_leaks),
        TEST(requests_without_memory_for_an_answer_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
