/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moor.h — the public C ABI of libmoor, version 1. The only installed header.
 *
 * A host obtains one table, `moor_get_api(MOOR_API_VERSION, &have)`, the only function that libmoor exports.
 *
 * Rules that hold for every function of the table:
 *  - It returns MOOR_OK (0) or an error; `api->last_error()` then holds a sentence of the calling thread that names the
 *    thing and the values. Outputs go through the last pointer arguments and are written only on MOOR_OK (exceptions say so).
 *  - Every public struct begins with `uint32_t size, version`; the caller fills them through the struct's _INIT macro, the
 *    callee reads no member beyond `size` (members beyond it have their zero default). Append only.
 *  - Strings going in are (pointer, length) or NUL terminated where the type is `const char *` alone; the callee copies
 *    what it keeps. Pointers coming out belong to the callee and live as long as the object they came from.
 *  - "Thread-safe" means any thread at any time until the object is closed. "Recorder thread" means: one thread at a time
 *    (the engine's step thread); other functions may run beside it.
 *  - Timeouts are seconds; 0 = do not wait; every wait ends by its deadline. Times in structs are nanoseconds.
 *  - No function exits, aborts, raises a signal, writes to stdout or calls back into the host except through moor_host and wait_check.
 *  - After fork() the child has the records that were open, and what they point to, leased as they are in the parent: it reads
 *    (record_info, _copy, _ref) and releases them. Their leases end together, when both have released all that was open at the
 *    fork, or have ended. Nothing else is the child's: handles of the parent return MOOR_E_FORKED there, and it opens its own. An exec
 *    ends what it has. A child that runs no pthread_atfork handlers (clone, _Fork) has nothing: MOOR_E_FORKED, and it must not read
 *    what it inherited.
 */
#ifndef MOOR_MOOR_H
#define MOOR_MOOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOOR_API_VERSION 1u
#define MOOR_VERSION_STRING "0.1.0"

typedef int32_t moor_status;
enum {
    MOOR_OK = 0,
    MOOR_E_INVALID = -1,    /* an argument is wrong: the text names it and the values */
    MOOR_E_NOMEM = -2,      /* ordinary memory ran out */
    MOOR_E_FULL = -3,       /* the arena or a fixed table is full */
    MOOR_E_NOT_FOUND = -4,  /* no such request, record, instance, session */
    MOOR_E_AMBIGUOUS = -5,  /* the id means several records; the text lists the full ids */
    MOOR_E_TIMEOUT = -6,    /* the deadline passed; the text says what was still missing */
    MOOR_E_STALE = -7,      /* the handle's record was freed */
    MOOR_E_INCOMPLETE = -8, /* rows are missing and the caller did not ask for missing rows */
    MOOR_E_GONE = -9,       /* a released session, a retired store */
    MOOR_E_STATE = -10,     /* not allowed in this state (install while not drained, commit without a step, …) */
    MOOR_E_POISONED = -11,  /* the gate is poisoned; the text names the request and why */
    MOOR_E_BROKEN = -12,    /* the barrier's round was broken */
    MOOR_E_CONFIG = -13,    /* configuration error; the text names the key, and the nearest known one */
    MOOR_E_EXISTS = -14,    /* a live server has this instance name */
    MOOR_E_ACCESS = -15,    /* owner, mode or peer credentials are not ours */
    MOOR_E_VERSION = -16,   /* other version of a file, wire format or table */
    MOOR_E_IO = -17,        /* a system call failed; the text has errno's name */
    MOOR_E_CLOSED = -18,    /* the connection or object is closed */
    MOOR_E_FORKED = -19,    /* the object belongs to the parent process */
    MOOR_E_UNSUPPORTED = -20,
    MOOR_E_RANGE = -21,      /* an expert id ≥ num_experts, a row or layer out of range */
    MOOR_E_CORRUPT = -22,    /* a file or message fails its checks */
    MOOR_E_INTERRUPTED = -23 /* the thread's wait_check ended the wait; the text says what it left */
};

/* Services of the host. All members may be NULL. Called from any thread, never with a Moor lock held. */
typedef struct moor_host {
    uint32_t size, version;
    void *user;
    /* level: 0 error, 1 warn, 2 info, 3 debug. text is one line without newline. NULL → stderr. */
    void (*log)(void *user, int level, const char *text);
    uint64_t (*now_ns)(void *user); /* monotonic; NULL → CLOCK_MONOTONIC */
    uint64_t reserved[4];
} moor_host;
#define MOOR_HOST_INIT                                                                                                 \
    {                                                                                                                  \
        .size = sizeof(moor_host), .version = 1                                                                        \
    }

/* ---- configuration -------------------------------------------------------------------------------------------- */

enum { MOOR_ON_ERROR_OPEN = 0, MOOR_ON_ERROR_STRICT = 1 };
enum { MOOR_DELIVER_NATIVE = 0, MOOR_DELIVER_REF = 1, MOOR_DELIVER_NONE = 2 };
enum { MOOR_MODE_OFF = 0, MOOR_MODE_OBSERVE = 1, MOOR_MODE_ENFORCE = 2 };
enum { MOOR_CLEANUP_ENGINE = 0, MOOR_CLEANUP_LIGHT = 1 };

typedef struct moor_config moor_config; /* parsed, checked, expanded; immutable; thread-safe */

/* Flat view of a configuration. Strings live as long as the moor_config. */
typedef struct moor_config_values {
    uint32_t size, version;
    const char *instance; /* NULL when not given */
    const char *dir;      /* NULL when not given */
    int32_t on_error, log_level;
    int32_t record_enabled, deliver, validate_at_seal, kv_index;
    uint64_t arena_bytes; /* resolved: configured or the default share of the cgroup's or host's memory */
    double keep_s;
    uint64_t keep_bytes;
    int32_t gate_mode, barrier_mode, cleanup_mode, reserved0;
    double drain_timeout_s, barrier_timeout_s, weights_timeout_s;
    uint32_t barrier_external, barrier_spin_us;
    uint64_t escalate_free_bytes, bucket_bytes;
    const char *record_restore; /* directory of a snapshot that a store begins with; NULL when not given */
    int32_t deliver_always;     /* the engine's field is filled for requests that did not ask for it, too */
    int32_t reserved1;
    uint64_t reserved[6];
} moor_config_values;
#define MOOR_CONFIG_VALUES_INIT                                                                                        \
    {                                                                                                                  \
        .size = sizeof(moor_config_values), .version = 1                                                               \
    }

/* ---- process and instance ------------------------------------------------------------------------------------- */

typedef struct moor_process moor_process; /* this process' membership in an instance */

enum { /* roles, a bit set: a single-process engine has several */
       MOOR_ROLE_FRONTEND = 1,
       MOOR_ROLE_CORE = 2,
       MOOR_ROLE_WORKER = 4,
       MOOR_ROLE_CONSUMER = 8
};

typedef struct moor_process_args {
    uint32_t size, version;
    const moor_host *host; /* copied */
    const char *engine;    /* "vllm", "mock", … for status */
    uint32_t roles, rank, world_size, dp_rank;
    uint64_t reserved[6];
} moor_process_args;
#define MOOR_PROCESS_ARGS_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(moor_process_args), .version = 1, .world_size = 1                                               \
    }

/* ---- recording ------------------------------------------------------------------------------------------------ */

typedef struct moor_store moor_store; /* the record store of the process that owns an arena */

enum { MOOR_DTYPE_U8 = 1, MOOR_DTYPE_U16 = 2, MOOR_DTYPE_I16 = 3, MOOR_DTYPE_I32 = 4, MOOR_DTYPE_I64 = 5 };

typedef struct moor_store_args {
    uint32_t size, version;
    uint32_t store_index;     /* names store-<n>.sock; the data-parallel rank * stages + the pipeline stage's number */
    uint32_t layers, top_k;   /* MoE layers (columns of a row), experts per token */
    uint32_t num_experts;     /* ≤ 256 → u8 rows, ≤ 65,536 → u16, more → MOOR_E_INVALID */
    const int32_t *layer_ids; /* [layers] the model's layer number of each column, ascending */
    uint32_t model_layers;    /* all hidden layers, for the engine's own layout */
    uint32_t max_step_tokens; /* a capture larger than this is refused before a byte is written */
    uint32_t kv_blocks, kv_block_size; /* 0,0 → no KV-slot index (prefix hits are then missing rows) */
    uint32_t max_requests;             /* hint */
    uint32_t dp_size, dp_rank, tp_size, tp_rank;
    uint64_t arena_bytes; /* 0 → configuration */
    /* Pipeline stages of a replica (0 and 1: none). Each first rank of a stage has a store with the columns of its own layers, and is told the
     * same steps and seals; store_index % stages is its number. Who opens a request gets the stages' columns as one record. */
    uint32_t stages, reserved0;
    uint64_t reserved[7];
} moor_store_args;
#define MOOR_STORE_ARGS_INIT                                                                                           \
    {                                                                                                                  \
        .size = sizeof(moor_store_args), .version = 1, .dp_size = 1, .tp_size = 1                                      \
    }

/* One request of a step, in batch order: `count` tokens from position `start`. */
typedef struct moor_step_request {
    const char *id; /* the engine core's id; copied when the record is created */
    uint32_t id_len;
    uint32_t count; /* tokens of this request in the step */
    uint64_t
        start; /* position of the first one; > rows known → rows between come from the KV-slot index or are missing */
    uint32_t spec; /* how many of the last `count` tokens are speculative (acceptance unknown until commit) */
    uint32_t n_kv_blocks;
    const int32_t *
        kv_blocks; /* [n_kv_blocks] the request's KV blocks from position 0; read during step_begin only; may be NULL */
    uint32_t rows_hint; /* rows the request may reach (prompt + max new tokens), 0 = unknown */
    uint32_t flags;     /* MOOR_STEP_* */
} moor_step_request;
enum {
    MOOR_STEP_PREFIX_UNPROVEN = 1
}; /* the cached prefix may come from outside this worker: rows are missing unless proven */

/* The ids that one MoE layer chose. Read during the call only; may be reused when it returns. */
typedef struct moor_ids {
    const void *data; /* host memory, [tokens][top_k] */
    uint32_t dtype;   /* MOOR_DTYPE_* */
    uint32_t tokens, top_k;
    int64_t stride_token, stride_k; /* in elements; 0,0 → contiguous */
} moor_ids;

/* How a capture's tokens map to this rank's, for data parallel layouts (SEMANTICS 1.12). */
typedef struct moor_dp_layout {
    const uint32_t *tokens_per_dp; /* [dp_size] local token counts of all ranks */
    const uint32_t *shard_sizes; /* [n_shards] sequence-parallel shard sizes, padded, DP-major; NULL when not sharded */
    uint32_t n_shards;
    uint32_t reserved;
} moor_dp_layout;

enum {                          /* seal flags */
       MOOR_SEAL_ABORTED = 1,   /* status only */
       MOOR_SEAL_COMMITTED = 2, /* rows_expected unknown: what the last step in flight committed */
       MOOR_SEAL_ERROR = 4
};

/* ---- ownership ------------------------------------------------------------------------------------------------ */

typedef uint64_t moor_handle; /* generation:32 | index:32; 0 is never a handle */

enum { MOOR_OWNER_NONE = 0, MOOR_OWNER_ROLLOUT = 1, MOOR_OWNER_TRACE_STORE = 2 };
enum { MOOR_EVENT_RESET = 1, MOOR_EVENT_DISCARD = 2, MOOR_EVENT_REPLACED = 3, MOOR_EVENT_SESSION_RELEASED = 4 };

/* ---- consumer ------------------------------------------------------------------------------------------------- */

typedef struct moor_client moor_client; /* attached to an instance; thread-safe */
typedef struct moor_record moor_record; /* an opened record = one lease; immutable; thread-safe */
typedef struct moor_hold moor_hold;

typedef struct moor_segment {
    const void *data; /* read-only mapping of the arena, [rows][layers][top_k] */
    uint64_t start, rows;
    uint32_t present; /* 0: this range is missing and data is NULL */
    uint32_t reserved;
} moor_segment;

typedef struct moor_version_run {
    uint64_t start, epoch; /* rows from `start` on were produced by weight epoch `epoch` */
    const char *label;     /* the caller's label of that epoch, "" when none */
} moor_version_run;

enum {
    MOOR_REASON_NONE = 0,
    MOOR_REASON_ARENA_FULL = 1,
    MOOR_REASON_LAYER_MISSING = 2,
    MOOR_REASON_PREFIX_UNKNOWN = 4,
    MOOR_REASON_SHORT = 8,
    MOOR_REASON_STEP_FAILED = 16,
    MOOR_REASON_VALIDATION = 32,
    MOOR_REASON_VERSIONS = 64 /* pipeline stages recorded the row under different weight epochs */
};                            /* why rows are missing, a bit set */

typedef struct moor_record_info {
    uint32_t size, version;
    const char *request_id; /* the engine core's id */
    const char *session_id; /* "" when none */
    moor_handle handle;
    uint64_t rows, missing_rows;
    uint32_t owner, layers, model_layers, top_k, num_experts, dtype; /* dtype: MOOR_DTYPE_U8 or _U16 */
    const int32_t *layer_ids;                                        /* [layers] */
    uint32_t n_segments, n_versions, reasons, store_index;
    const moor_segment
        *segments; /* [n_segments] in row order, together exactly rows 0…rows-1, missing ranges included */
    const moor_version_run *versions;
    uint64_t dropped_rows; /* recomputed rows that lost against the first accepted ones */
    uint64_t first_row;    /* the request's row that is row 0 here: > 0 when a ref named a part of the record */
    uint64_t reserved[3];
} moor_record_info;
#define MOOR_RECORD_INFO_INIT                                                                                          \
    {                                                                                                                  \
        .size = sizeof(moor_record_info), .version = 1                                                                 \
    }

enum {
    MOOR_OPEN_PREFIX =
        1, /* rows 0…rows-1 of a request that is perhaps not sealed, of several with this id of the core's the newest; for
                             delivery by the engine itself */
    MOOR_OPEN_PRIVATE = 2 /* not for forked children: MOOR_E_FORKED there, and what it points to must not be read */
};

/* ---- sessions ------------------------------------------------------------------------------------------------- */

enum { MOOR_SESSION_KEEP = 1 }; /* session_start: the session outlives the client that starts it */
#define MOOR_SEGMENT_DEFAULT UINT64_MAX

/* What a key of a session stands for: tokens start…start+length-1 of its trace, and the rows of `record` at these positions. */
typedef struct moor_segment_args {
    uint32_t size, version;
    const moor_record *record; /* NULL: rows come from the next key's record */
    uint64_t start;            /* default: where the nearest key above ends */
    uint64_t length;           /* default: that of the tokens, else the record's rows from start on */
    const int32_t *tokens;     /* [n_tokens] of this segment; NULL: not known */
    uint64_t n_tokens;
    uint64_t reserved[4];
} moor_segment_args;
#define MOOR_SEGMENT_ARGS_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(moor_segment_args), .version = 1, .start = MOOR_SEGMENT_DEFAULT, .length = MOOR_SEGMENT_DEFAULT \
    }

/* Results that the callee allocates, each one piece, freed with session_free; `size` says how much of the struct there is. */
typedef struct moor_found_key {
    uint32_t size, version;
    uint32_t key_len, has_tokens;
    uint64_t start, length;
    moor_handle handle; /* of the record, 0: none */
    const int32_t *tokens;
    uint64_t n_tokens;
    const char *request_id; /* "" without a record */
    uint32_t store_index, reserved0;
    uint64_t reserved[4];
} moor_found_key;

/* Keys depth first in the order of their insertion, n times: u32 how many bytes it shares with the key before, u32 how many
 * more, and these. A chain of n keys thus takes the room of its longest. */
typedef struct moor_key_list {
    uint32_t size, version;
    uint64_t n, data_size;
    const uint8_t *data;
    uint64_t reserved[4];
} moor_key_list;

typedef struct moor_trace_rows { /* rows start…stop-1 of the trace are these rows of this record */
    moor_record *record;
    uint64_t start, stop;
} moor_trace_rows;

typedef struct moor_trace_key {
    uint64_t start, length;
    moor_handle handle;
    uint32_t key_len, reserved;
} moor_trace_key;

typedef struct moor_exported { /* from the root to a key, without a hole */
    uint32_t size, version;
    uint64_t n_tokens, rows; /* the last token may have no row */
    const int32_t *tokens;   /* [n_tokens], or NULL: not all are known */
    uint32_t n_parts, n_keys;
    const moor_trace_rows *parts; /* their records are the caller's: record_release each */
    const moor_trace_key *keys;
    uint64_t reserved[4];
} moor_exported;

/* ---- gate ----------------------------------------------------------------------------------------------------- */

enum { MOOR_GATE_OPEN = 0, MOOR_GATE_SEALED = 1, MOOR_GATE_DRAINED = 2 };
enum {                       /* what a server's front ends must know of each other; gate_close, gate_note */
       MOOR_GATE_KEPT = 1,   /* requests in flight live through the pause: drain is over at once, install is allowed */
       MOOR_GATE_OWN = 2,    /* closed for an update that came without a pause: who ends the update opens the gate */
       MOOR_GATE_SESSION = 4 /* an update of several calls has begun and not ended */
};

typedef struct moor_ticket { /* a request's admission; owned by the caller, filled by gate_enter */
    uint64_t id;             /* 0: not admitted */
    uint64_t epoch;          /* weight epoch at admission */
    uint64_t t_enter_ns;
} moor_ticket;

enum { MOOR_GATE_FOR_ENTER = 0, MOOR_GATE_FOR_DRAIN = 1, MOOR_GATE_FOR_REOPEN = 2 }; /* what gate_watch watches for */

enum { MOOR_OUTCOME_FINISHED = 0, MOOR_OUTCOME_ABORTED = 1, MOOR_OUTCOME_FAILED = 2, MOOR_OUTCOME_UNKNOWN = 3 };

typedef struct moor_receipt {
    uint32_t size, version;
    uint64_t epoch_start, epoch_end, rows, wall_ns;
    uint32_t outcome, reserved0;
    char request_id[96]; /* cut to 95 bytes */
    uint64_t reserved[2];
} moor_receipt;
#define MOOR_RECEIPT_INIT                                                                                              \
    {                                                                                                                  \
        .size = sizeof(moor_receipt), .version = 1                                                                     \
    }

typedef struct moor_gate_status {
    uint32_t size, version;
    uint32_t state, poisoned;
    uint64_t epoch, in_flight, waiting, sealed_for_ns;
    uint64_t seals, installs, reopens, would_wait; /* would_wait: what enforce would have delayed (observe mode) */
    char label[64], poison_reason[192];
    uint32_t flags, reserved0; /* MOOR_GATE_KEPT and so on */
    uint64_t reserved[3];
} moor_gate_status;
#define MOOR_GATE_STATUS_INIT                                                                                          \
    {                                                                                                                  \
        .size = sizeof(moor_gate_status), .version = 1                                                                 \
    }

/* ---- weights and cleanup -------------------------------------------------------------------------------------- */

enum {                          /* how a weight change was seen, counted per kind */
       MOOR_WEIGHTS_UPDATE = 0, /* the engine's own update call */
       MOOR_WEIGHTS_RPC = 1,    /* collective_rpc of a method Moor does not know to be harmless */
       MOOR_WEIGHTS_LOAD = 2,   /* load_weights of the loaded model */
       MOOR_WEIGHTS_RELOAD = 3,
       MOOR_WEIGHTS_LORA = 4,
       MOOR_WEIGHTS_KINDS = 5
};
enum { /* cleanup phases */
       MOOR_PHASE_BEFORE_WEIGHTS = 0,
       MOOR_PHASE_TRANSFER = 1,
       MOOR_PHASE_AFTER_WEIGHTS = 2,
       MOOR_PHASE_BEFORE_KV = 3,
       MOOR_PHASES = 4
};
enum { /* what happened in a phase */
       MOOR_CLEAN_GC = 0,
       MOOR_CLEAN_GC_SUPPRESSED = 1,
       MOOR_CLEAN_EMPTY_CACHE = 2,
       MOOR_CLEAN_EMPTY_CACHE_SKIPPED = 3,
       MOOR_CLEAN_SYNCHRONIZE = 4,
       MOOR_CLEAN_ESCALATED = 5,
       MOOR_CLEAN_RETRY = 6,
       MOOR_CLEAN_KINDS = 7
};

/* ---- barrier -------------------------------------------------------------------------------------------------- */

typedef struct moor_barrier_result {
    uint32_t size, version;
    uint64_t generation, waited_ns;
    uint32_t outcome; /* MOOR_OK's complement: 0 passed, 1 timed out, 2 broken */
    uint32_t missing_ranks, holders;
    char text[512]; /* names of the ranks missing and the holders (label, pid, bytes) */
    uint64_t reserved[2];
} moor_barrier_result;
#define MOOR_BARRIER_RESULT_INIT                                                                                       \
    {                                                                                                                  \
        .size = sizeof(moor_barrier_result), .version = 1                                                              \
    }

/* ---- the table ------------------------------------------------------------------------------------------------ */

typedef struct moor_api {
    uint32_t size, version;

    /* Library. */
    const char *(*version_string)(void);
    const char *(*status_name)(moor_status status); /* "MOOR_E_TIMEOUT" */
    const char *(*last_error)(void);                /* this thread's; never NULL; until its next failing call */
    const char *(*library_path)(void);              /* path of libmoor.so.1 as loaded */

    /* Configuration. `json`: text of the "moor" object from the engine's own place, or NULL; $MOOR_CONFIG (inline JSON
     * or a path) is read below it (json wins per key). MOOR_E_CONFIG names key, value, expected type, nearest key. */
    moor_status (*config_parse)(const char *json, size_t json_len, moor_config **out);
    moor_status (*config_values)(const moor_config *config, moor_config_values *out);
    void (*config_free)(moor_config *config);

    /* Process. process_join creates or joins the instance that the configuration or $MOOR_INSTANCE names, maps its state
     * and registers this process; exports MOOR_INSTANCE and MOOR_DIR to the environment, safely beside threads that read
     * it (process_leave gives back what they said before). A second join in one process returns the same object with the roles united (and the first one's configuration). The process keeps a reference of
     * its own to `config`; the caller frees his. process_leave releases everything; the last one removes the files.
     * MOOR_E_EXISTS, MOOR_E_ACCESS, MOOR_E_IO as above. Thread-safe. */
    moor_status (*process_join)(const moor_config *config, const moor_process_args *args, moor_process **out);
    void (*process_leave)(moor_process *process);
    const moor_config *(*process_config)(const moor_process *process);
    const char *(*process_instance)(const moor_process *process); /* name */
    const char *(*process_dir)(const moor_process *process);      /* <dir>/<instance> */
    void (*log)(moor_process *process, int level,
                const char *text); /* filtered by the configured level; process may be NULL */

    /* Store (worker that owns an arena). store_open makes region, arena, socket and server thread. */
    moor_status (*store_open)(moor_process *process, const moor_store_args *args, moor_store **out);
    void (*store_close)(moor_store *store);

    /* Recording; recorder thread. A step is begin → capture per layer → commit. Begin reads the batch map, creates
     * records for new ids, supplies cached prefixes and reserves rows; capture narrows ids into the records' blocks;
     * commit makes the rows accepted (accepted[i] of request i's `count` tokens, NULL: all but unknown speculative ones,
     * which then wait for the next step's start or the seal). Rows of positions that were already accepted are dropped
     * and counted (SEMANTICS 1.6). A layer that did not capture makes the step's rows missing (1.4).
     * step_begin while a step is open abandons the open one (its rows: missing, STEP_FAILED). */
    moor_status (*step_begin)(moor_store *store, const moor_step_request *requests, uint32_t n);
    moor_status (*capture)(moor_store *store, uint32_t layer_column, const moor_ids *ids, const moor_dp_layout *dp);
    moor_status (*step_commit)(moor_store *store, const uint32_t *accepted, uint32_t n);
    moor_status (*step_abandon)(moor_store *store);
    /* KV blocks that the core handed out again before the next step_begin: their index entries end. */
    moor_status (*kv_handed_out)(moor_store *store, const int32_t *blocks, uint32_t n);
    moor_status (*kv_reset)(moor_store *store);
    /* The worker's own notice that requests are finished: the fallback seal, rows = what is committed. */
    moor_status (*request_finished)(moor_store *store, const char *id, uint32_t id_len);
    /* A further id by which a record is found; index orders open_many. Recorder thread or any. */
    moor_status (*request_alias)(moor_store *store, const char *id, uint32_t id_len, const char *alias,
                                 uint32_t alias_len, uint32_t index);
    /* Rows delivered from outside (external fill, disaggregation, resumption): positions start…start+rows-1, [rows][layers][top_k].
     * A resumption may be short of the history by one row; by two is MOOR_E_RANGE with both numbers. Longer wins (1.7, 1.8). */
    moor_status (*request_fill)(moor_store *store, const char *id, uint32_t id_len, uint64_t start,
                                const moor_ids *rows_as_ids, uint64_t rows);
    moor_status (*truncate)(moor_store *store, const char *id, uint32_t id_len, uint64_t rows, uint64_t min_rows);

    /* Seal, from the engine core (any process of the instance): lock-free ring in the state, no syscall; a full ring is
     * counted and the worker's notice takes over. rows_expected = tokens that went through the model (SEMANTICS 1.1). */
    moor_status (*seal)(moor_process *process, uint32_t store_index, const char *id, uint32_t id_len,
                        uint64_t rows_expected, uint32_t flags);

    /* Ownership inside the owning process. lease/unlease are lock-free, but for the last lease of a freed record. event applies the
     * one policy function; free of a freed record: MOOR_E_STALE, nothing done. */
    moor_status (*lease)(moor_store *store, moor_handle handle);
    moor_status (*unlease)(moor_store *store, moor_handle handle);
    moor_status (*claim)(moor_store *store, moor_handle handle, uint32_t owner);
    moor_status (*event)(moor_store *store, moor_handle handle, uint32_t event);
    moor_status (*find)(moor_store *store, const char *id, uint32_t id_len, moor_handle *out);

    /* Consumer. attach looks in every candidate directory; not unique → MOOR_E_AMBIGUOUS listing what was found.
     * instance NULL → $MOOR_INSTANCE or "default". A client is of one server's life: when that is gone, everything is MOOR_E_CLOSED, also
     * once a server of the same name is there (whose ids may mean other requests, and whose gate is open); attach again.
     * When somebody removes the files of a server that lives, who is attached goes on, and attach says so. */
    moor_status (*attach)(const char *instance, const char *dir, double timeout, moor_client **out);
    void (*detach)(moor_client *client); /* records opened from it stay readable, and leased until each is released */
    const char *(*client_instance)(const moor_client *client);
    /* Opens the sealed record that `id` means (core id, external id, HTTP id) and leases it. flags/rows: MOOR_OPEN_PREFIX.
     * An id that one store has sealed and another has not yet: MOOR_E_TIMEOUT. A store that does not answer at all is given up 5 s after
     * the timeout (MOOR_E_CLOSED, in every call of a client); until something comes from it, calls ask the others, and what those do not have is
     * MOOR_E_TIMEOUT, whose text names the silent store. MOOR_E_UNSUPPORTED at once where the server records nothing (recording_off).
     * Pipeline stages: waits until every stage has it sealed; the rows are put together in memory of the record's own, and events and
     * claims go to every stage. A row that a stage lacks is missing. */
    moor_status (*open)(moor_client *client, const char *id, uint32_t id_len, double timeout, uint32_t flags,
                        uint64_t rows, moor_record **out);
    /* All records of an id, in index order. *out is an array of *n records, freed with records_free. */
    moor_status (*open_all)(moor_client *client, const char *id, uint32_t id_len, double timeout, moor_record ***out,
                            uint32_t *n);
    void (*records_free)(moor_record **records, uint32_t n); /* the array only */
    /* Attaches by itself, cached. The record has the rows that the ref names (fewer, when it was cut since); events, claims and sessions are
     * of the record as a whole. */
    moor_status (*resolve)(const char *ref, size_t ref_len, double timeout, moor_record **out);
    moor_status (*record_info)(const moor_record *record, moor_record_info *out);
    /* Copies rows start…stop-1. model_layout: columns are all model_layers, dense ones 0. dst_dtype any of the five.
     * mask: NULL, or [stop-start] bytes, 1 = present; with mask NULL missing rows → MOOR_E_INCOMPLETE, nothing written. */
    moor_status (*record_copy)(const moor_record *record, uint64_t start, uint64_t stop, int model_layout,
                               uint32_t dst_dtype, void *dst, size_t dst_bytes, uint8_t *mask);
    /* moor1:HOST:INSTANCE:STORE:HANDLE:DTYPE:RxLxK[@START]: R rows, the request's from START (else 0) on; of pipeline stages one part each,
     * with "+" between them. */
    moor_status (*record_ref)(const moor_record *record, char *buf, size_t size);
    moor_status (*record_event)(moor_record *record, uint32_t event);
    moor_status (*record_claim)(moor_record *record, uint32_t owner);
    void (*record_release)(moor_record *record); /* ends the lease and the object */
    moor_status (*client_truncate)(moor_client *client, const char *id, uint32_t id_len, uint64_t rows);

    /* Gate; shared by all processes of the instance; enter/leave lock-free. gate_enter: open → admitted; sealed → waits until
     * reopen or timeout (MOOR_E_TIMEOUT; timeout 0 → at once). records: how many records must be stored before the
     * request is settled (n of the request; 0 = none expected). gate_leave: the backend ended. No ticket cell is free: in enforce
     * the request waits for one until timeout, in observe it is refused at once (MOOR_E_FULL; counted, said once). */
    moor_status (*gate_enter)(moor_process *process, const char *id, uint32_t id_len, uint32_t records, double timeout,
                              moor_ticket *out);
    moor_status (*gate_leave)(moor_process *process, moor_ticket *ticket, uint32_t outcome,
                              moor_receipt *receipt /* may be NULL */);
    moor_status (*gate_seal)(moor_process *process);
    moor_status (*gate_drain)(moor_process *process, double timeout);
    moor_status (*gate_install)(moor_process *process, const char *label, int keep_in_flight, uint64_t *epoch);
    moor_status (*gate_reopen)(moor_process *process, double timeout);
    moor_status (*gate_poison)(moor_process *process, const char *reason);
    moor_status (*gate_acknowledge)(moor_process *process);
    moor_status (*gate_status)(moor_process *process, moor_gate_status *out);
    /* The same from outside, for a trainer: verb is "seal", "drain", "install", "reopen", "acknowledge", "status". */
    moor_status (*client_gate)(moor_client *client, const char *verb, const char *label, double timeout,
                               moor_gate_status *out);

    /* Weights: a change was seen. update_begin/end bracket the engine's own update session (any process, nestable);
     * touched: weights of this process changed now. The epoch moves when rows were recorded since it last moved, or once per
     * session. label may be NULL. In observe mode nothing waits. */
    moor_status (*weights_begin)(moor_process *process, uint32_t kind);
    moor_status (*weights_touched)(moor_process *process, uint32_t kind, const char *what);
    moor_status (*weights_end)(moor_process *process, int ok, const char *why);
    moor_status (*weights_label)(moor_process *process, const char *label); /* labels the current epoch */
    uint64_t (*weights_epoch)(moor_process *process);

    /* Barrier before the KV cache resumes. resume_arrive: rank of world arrives; waits for the others and for every hold on
     * device (UUID or "cpu:0") of other processes. TIMEOUT/BROKEN also fill *result. Decided once per generation. barrier_arrive: `size` consumers meet under a name, again and
     * again; an instance has 16 names. "resume" or "resume:<replica>" is an external arrival of the resume barrier. */
    moor_status (*resume_arrive)(moor_process *process, uint32_t rank, uint32_t world, uint32_t replica,
                                 const char *device, double timeout, moor_barrier_result *result);
    moor_status (*barrier_arrive)(moor_client *client, const char *name, uint32_t size, uint32_t rank, double timeout,
                                  moor_barrier_result *result);
    /* Says that this process holds memory on the device, until hold_release or its end. Every server of this user on this machine sees it,
     * whatever the environment of either was: the hold lies in all directories that one may use, and in `dir` (NULL: none),
     * for servers that share nothing else, as containers do. */
    moor_status (*hold_take)(const char *dir, const char *device, const char *label, uint64_t bytes, moor_hold **out);
    void (*hold_release)(moor_hold *hold);

    /* Cleanup counters; the adapter decides with window_* and reports what happened. */
    int (*cleanup_window)(moor_process *process,
                          int delta); /* +1 enter, -1 leave, 0 ask; returns the depth in this process */
    moor_status (*cleanup_count)(moor_process *process, uint32_t phase, uint32_t kind, uint64_t ns);

    /* Counters by name ("moor_capture_errors_total" style, registered names only) and status text. *out is malloc'ed by
     * Moor and freed with text_free. format: "json", "prometheus", "human". */
    moor_status (*count)(moor_process *process, const char *name, uint64_t delta);
    moor_status (*status_text)(const char *instance, const char *dir, const char *format, char **out, size_t *len);
    moor_status (*client_stats)(moor_client *client, char **json, size_t *len);
    void (*text_free)(char *text);

    /* Sessions: a trace trie each, from text keys to segments of tokens and rows. A session lives in the store that its first
     * record is in; a record of another store is MOOR_E_STATE. Nothing that reads makes a session (MOOR_E_NOT_FOUND); the first
     * insert does. A released one, or one whose starter's connection ended, is MOOR_E_GONE until session_start. A record that
     * is inserted becomes trace_store's and is freed with its key or its session, also one whose key was overwritten. */
    moor_status (*session_start)(moor_client *client, const char *id, uint32_t id_len, uint32_t flags);
    moor_status (*session_insert)(moor_client *client, const char *id, uint32_t id_len, const char *key,
                                  uint32_t key_len, const moor_segment_args *args);
    /* The longest key that text begins with, never ""; *out NULL: none. */
    moor_status (*session_search)(moor_client *client, const char *id, uint32_t id_len, const char *text,
                                  uint32_t text_len, moor_found_key **out);
    moor_status (*session_keys)(moor_client *client, const char *id, uint32_t id_len, moor_key_list **out);
    /* MOOR_E_INCOMPLETE names the hole: tokens that no key on the way has, rows that no record has. */
    moor_status (*session_export)(moor_client *client, const char *id, uint32_t id_len, const char *key,
                                  uint32_t key_len, moor_exported **out);
    /* Cuts the trace that ends at `key` where its tokens first differ from these (the end of these included), if at least
     * min_tokens are left (else MOOR_E_RANGE) and no other key hangs on what goes (MOOR_E_STATE). Tokens and rows together; keys
     * whose segments begin there or later go. *key_left: length of the key that it ends at now, 0: none. */
    moor_status (*session_rollback)(moor_client *client, const char *id, uint32_t id_len, const char *key,
                                    uint32_t key_len, const int32_t *tokens, uint64_t n_tokens, uint64_t min_tokens,
                                    uint64_t *kept, uint32_t *key_left);
    moor_status (*session_release_key)(moor_client *client, const char *id, uint32_t id_len, const char *key,
                                       uint32_t key_len);
    moor_status (*session_release)(moor_client *client, const char *id, uint32_t id_len);
    void (*session_free)(void *result);
    /* client_truncate that refuses to leave fewer than min_rows (MOOR_E_RANGE). */
    moor_status (*client_truncate_within)(moor_client *client, const char *id, uint32_t id_len, uint64_t rows,
                                          uint64_t min_rows);

    /* Snapshot. store_save writes the sealed records of a quiet store (no open step, nothing unsealed: else MOOR_E_STATE names what is
     * open) to <dir>/store-<n>.moor: handles, ids and aliases, owners, rows with versions and missing ranges, shared rows once. dir is
     * absolute; its last component is made when it is absent. The file is complete and on the disk before it takes its name, so
     * until MOOR_OK, whatever happens, an earlier snapshot there is as it was (without locks or syncs of directories in its
     * file system it works too, with a warning). Leases and clients are no part of it. Any thread.
     * store_restore: into a store that has not had a record yet (MOOR_E_STATE), all or nothing. MOOR_E_NOT_FOUND; MOOR_E_INVALID: of
     * another model, both named; MOOR_E_VERSION; MOOR_E_CORRUPT names the place; MOOR_E_FULL: the arena is too small. The weight epoch
     * moves beyond the snapshot's. Configuration record.restore does it in store_open.
     * client_save asks every store of the instance to save itself to dir, a directory as the server sees it. One deadline for all. */
    moor_status (*store_save)(moor_store *store, const char *dir, double timeout);
    moor_status (*store_restore)(moor_store *store, const char *dir);
    moor_status (*client_save)(moor_client *client, const char *dir, double timeout);

    /* recording_off: the worker that should record cannot (no router, ids that it cannot read, no memory for an arena), whatever the
     * configuration says. From then on no process of the instance seals, delivers or waits for a record, and status says why; the
     * next store_open undoes it, and so does why NULL: another engine, which may have what the last one had not, begins in the
     * instance. recording_on: 1 when requests of this server have records. Thread-safe; recording_on is lock-free. */
    moor_status (*recording_off)(moor_process *process, const char *why);
    int (*recording_on)(const moor_process *process);

    /* n of the records that gate_enter was told of will not come: the backend was never given what they would be of. The ticket
     * stays the caller's, and waits for the others. MOOR_E_STALE as gate_leave. */
    moor_status (*gate_fewer)(moor_process *process, const moor_ticket *ticket, uint32_t n);

    /* Waiting at the gate in an event loop, which a blocked thread for each request would not carry. gate_watch: *fd is an eventfd, not
     * blocking, that becomes readable once for each change after which `call` (MOOR_GATE_FOR_*: gate_enter, gate_drain, gate_reopen) with
     * timeout 0 is worth another look, at once when it is now. The host reads it, looks, and calls gate_unwatch, which closes it, also
     * after process_leave; a forked child has no watch, and its descriptors are closed. One watch serves any number of requests: the host
     * keeps them in order, their deadlines, and looks again by itself now and then (4 times a second), so that nothing hangs on
     * a thread that could not be had. gate_waiting: delta more (or fewer) requests wait so, for `waiting` in gate_status.
     * gate_enter_again: their further looks; nothing is counted twice. gate_drain_late: the last look of a drain that waited `timeout`,
     * which is counted and told as one of that length; gate_drain with timeout 0 counts nothing.
     * Thread-safe. None waits. MOOR_E_NOMEM, MOOR_E_IO: no thread, no descriptor. */
    moor_status (*gate_watch)(moor_process *process, uint32_t call, int *fd);
    void (*gate_unwatch)(int fd);
    moor_status (*gate_waiting)(moor_process *process, int delta);
    moor_status (*gate_enter_again)(moor_process *process, const char *id, uint32_t id_len, uint32_t records,
                                    moor_ticket *out);
    moor_status (*gate_drain_late)(moor_process *process, double timeout);
    /* The servers that live now in a directory where the hold lies, "<dir>/<instance>" one a line, "" when there are none. A server with a
     * directory of its own sees the hold as well; it is listed when hold_take was given that directory. *out: text_free. */
    moor_status (*hold_seen_by)(const moor_hold *hold, char **out, size_t *len);

    /* For hosts that have signals to look for: from now on every wait of the calling thread asks check(user) within 100 ms, again and
     * again; other than 0 ends it with MOOR_E_INTERRUPTED. What was begun is not left half done: a request that was sent is the store's to finish, its
     * answer is dropped, with its leases, when it comes; a barrier's round that the caller is in is broken for all; a gate stays as it is. check
     * is called with no lock held and may call Moor. NULL: no more. Not inherited by other threads. */
    void (*wait_check)(int (*check)(void *user), void *user);
    /* gate_close: gate_seal with flags MOOR_GATE_KEPT and MOOR_GATE_OWN. At a gate that is closed already KEPT stays once somebody said so
     * (what is frozen stays frozen), OWN is as the last call says. reopen takes both away. They are the server's and not the
     * caller's: whoever died, another front end goes on. *was_open may be NULL. gate_note sets and clears flags and does nothing else. */
    moor_status (*gate_close)(moor_process *process, uint32_t flags, int *was_open);
    moor_status (*gate_note)(moor_process *process, uint32_t set, uint32_t clear);

    /* A client of this process' own instance, by the directory that it has open: it waits for nothing, connects with the first call, and is never
     * another server's, whatever has become of the directory's name. MOOR_E_IO: no descriptor. */
    moor_status (*attach_own)(moor_process *process, moor_client **out);

    /* The ref of what `ref` names without its first `head` and last `tail` rows (MOOR_E_RANGE: it has fewer). No store is asked. */
    moor_status (*ref_part)(const char *ref, size_t ref_len, uint64_t head, uint64_t tail, char *buf, size_t size);
} moor_api;

/* Returns the table of version `want`, or NULL when this library does not have it. *have (may be NULL): the newest it has.
 * Thread-safe; no side effect. */
const moor_api *moor_get_api(uint32_t want, uint32_t *have);

#ifdef __cplusplus
}
#endif
#endif
