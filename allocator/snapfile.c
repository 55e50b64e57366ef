/* SPDX-License-Identifier: Apache-2.0 */
#include "snapfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "dirs.h"
#include "error.h"
#include "heap.h"
#include "memfd.h"

static const char magic[8] = {'M', 'O', 'O', 'R', 'S', 'N', 'A', 'P'};

static int (*call_hook)(const char *call);

void moor_snapfile_set_hook(int (*hook)(const char *call))
{
    call_hook = hook;
}

/* 0, or -1 with errno: the call is to fail. *n (may be NULL) is halved when it is to be cut short. */
static int may(const char *call, size_t *n)
{
    int what = call_hook ? call_hook(call) : 0;
    if (what == MOOR_SNAP_SHORT) {
        if (n && *n > 1)
            *n /= 2;
        return 0;
    }
    if (!what)
        return 0;
    errno = what;
    return -1;
}

const char *moor_snap_kind_name(uint32_t kind)
{
    static const char *const names[MOOR_SNAP_KINDS] = {"?",      "model",   "store", "labels",
                                                       "blocks", "records", "rows",  "sessions"};
    return kind < MOOR_SNAP_KINDS ? names[kind] : "?";
}

/* ---- names ---- */

static moor_status check_path(const char *dir, const char *name, char path[PATH_MAX])
{
    if (!dir || dir[0] != '/')
        return moor_fail(MOOR_E_INVALID, "snapshot directory \"%.200s\": an absolute path is needed", dir ? dir : "");
    size_t length = strlen(dir);
    /* The temporary name is a little longer. */
    if (length + strlen(name) + 16 > PATH_MAX)
        return moor_fail(MOOR_E_INVALID, "snapshot directory \"%.100s…\": a path of %zu bytes, %d are allowed", dir,
                         length, PATH_MAX - 16 - (int)strlen(name));
    snprintf(path, PATH_MAX, "%s/%s", dir, name);
    return MOOR_OK;
}

/* What a file system lacks is said once a process; what was asked for is done as well as it can. */
enum lack { NO_LOCKS, NO_DIRECTORY_SYNC, LACKS };

static void say_lack(enum lack lack, const char *path, int err)
{
    static const char *const texts[LACKS] = {
        "has no locks: what a killed writer leaves is removed an hour later, and of two that write at once the later "
        "one stays",
        "writes no directory to the disk when asked: after a power failure the last snapshots may have no name",
    };
    static atomic_flag said[LACKS] = {ATOMIC_FLAG_INIT, ATOMIC_FLAG_INIT};
    char text[64];
    if (!atomic_flag_test_and_set(&said[lack]))
        moor_log(MOOR_LOG_WARN, "snapshot %s: its file system %s (%s)", path, texts[lack],
                 strerror_r(err, text, sizeof(text)));
}

/* 0, or -1 with errno. */
static int sync_directory(int fd, const char *call, const char *path)
{
    if (!may(call, NULL) && fsync(fd) == 0)
        return 0;
    if (errno != EINVAL && errno != EOPNOTSUPP && errno != ENOSYS)
        return -1;
    say_lack(NO_DIRECTORY_SYNC, path, errno);
    return 0;
}

/* The directory was made: its name must outlive a crash too. One that we may not read cannot be asked to. */
static moor_status sync_parent(const char *dir)
{
    char parent[PATH_MAX];
    snprintf(parent, sizeof(parent), "%s", dir);
    size_t n = strlen(parent);
    while (n > 1 && parent[n - 1] == '/')
        parent[--n] = 0;
    char *slash = strrchr(parent, '/');
    slash[slash == parent] = 0;
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == EACCES) {
        say_lack(NO_DIRECTORY_SYNC, dir, errno);
        return MOOR_OK;
    }
    int bad = fd < 0 || sync_directory(fd, "fsync of the parent", dir) < 0;
    int err = errno;
    if (fd >= 0)
        close(fd);
    return bad ? moor_fail_errno(MOOR_E_IO, err, "snapshot directory %s: fsync of %s", dir, parent) : MOOR_OK;
}

static moor_status open_dir(const char *dir, int create, int *out)
{
    int fd = may("open of the directory", NULL) ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && create) {
        if (may("mkdir", NULL) || (mkdir(dir, 0700) < 0 && errno != EEXIST))
            return moor_fail_errno(MOOR_E_IO, errno, "snapshot directory %s cannot be made", dir);
        moor_status status = sync_parent(dir);
        if (status) {
            (void)rmdir(dir);
            return status;
        }
        fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    if (fd < 0)
        return moor_fail_errno(errno == ENOENT ? MOOR_E_NOT_FOUND : MOOR_E_IO, errno, "snapshot directory %s", dir);
    *out = fd;
    return MOOR_OK;
}

/* ---- writing ---- */

/* Where nobody can lock, a writer has a name of its own. One that nobody has written to for an hour (by the clock of the file system)
 * was left by a writer that was killed: a living one writes all the time. */
static void remove_abandoned(const moor_snapfile *file)
{
    enum { ABANDONED_S = 3600 };
    char begin[sizeof(file->name) + 2];
    struct stat ours, st;
    int n = snprintf(begin, sizeof(begin), ".%s.", file->name);
    int copy = openat(file->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
    struct dirent *entry;
    if (!dir && copy >= 0)
        close(copy);
    while (dir && fstat(file->fd, &ours) == 0 && (entry = readdir(dir)))
        if (strncmp(entry->d_name, begin, (size_t)n) == 0 &&
            fstatat(file->dir_fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
            ours.st_mtime - st.st_mtime > ABANDONED_S)
            unlinkat(file->dir_fd, entry->d_name, 0);
    if (dir)
        closedir(dir);
}

static moor_status take_unlocked(moor_snapfile *file, int err)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(file->temporary, sizeof(file->temporary), ".%s.%x.%llx.tmp", file->name, (unsigned)getpid(),
             (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec);
    say_lack(NO_LOCKS, file->path, err);
    file->fd = may("open without a lock", NULL)
                   ? -1
                   : openat(file->dir_fd, file->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file->fd < 0)
        return moor_fail_errno(MOOR_E_IO, errno, "snapshot %s: its temporary file %s cannot be made", file->path,
                               file->temporary);
    remove_abandoned(file);
    return MOOR_OK;
}

/* The temporary file's descriptor, -1 with errno. *made: it was not there before. */
static int open_temporary(const moor_snapfile *file, int *made)
{
    enum { FLAGS = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW };
    if (may("open", NULL))
        return -1;
    int fd = openat(file->dir_fd, file->temporary, FLAGS | O_EXCL, 0600);
    *made = fd >= 0;
    return fd >= 0 || errno != EEXIST ? fd : openat(file->dir_fd, file->temporary, FLAGS, 0600);
}

/* Opens and locks the temporary file. Whoever had it before may have renamed it between our open and our lock: then what we hold is a
 * finished snapshot, and not to be touched. */
static moor_status take_temporary(moor_snapfile *file)
{
    for (int tries = 0; tries < 16; tries++) {
        struct stat held, named;
        int made = 0, fd = open_temporary(file, &made);
        if (fd < 0)
            return moor_fail_errno(MOOR_E_IO, errno, "snapshot %s: its temporary file %s cannot be made", file->path,
                                   file->temporary);
        if (may("flock", NULL) || flock(fd, LOCK_EX | LOCK_NB) < 0) {
            int err = errno;
            close(fd);
            if (err == EWOULDBLOCK)
                return moor_fail(MOOR_E_STATE, "snapshot %s: another one is being written there", file->path);
            if (made)
                (void)unlinkat(file->dir_fd, file->temporary, 0);
            if (moor_dirs_no_locks(err))
                return take_unlocked(file, err);
            return moor_fail_errno(MOOR_E_IO, err, "snapshot %s: flock of %s", file->path, file->temporary);
        }
        if (fstat(fd, &held) == 0 && fstatat(file->dir_fd, file->temporary, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
            held.st_ino == named.st_ino && held.st_dev == named.st_dev) {
            file->fd = fd;
            return MOOR_OK;
        }
        flock(fd, LOCK_UN);
        close(fd);
    }
    return moor_fail(MOOR_E_STATE, "snapshot %s: others keep replacing %s", file->path, file->temporary);
}

moor_status moor_snapfile_create(moor_snapfile *file, const char *dir, const char *name, uint64_t deadline_ns,
                                 const _Atomic int *cancel)
{
    static const uint8_t nothing[MOOR_SNAP_HEADER];
    memset(file, 0, sizeof(*file));
    file->fd = file->dir_fd = -1;
    file->deadline_ns = deadline_ns;
    file->cancel = cancel;
    snprintf(file->name, sizeof(file->name), "%s", name);
    snprintf(file->temporary, sizeof(file->temporary), ".%s.tmp", name);
    moor_status status = check_path(dir, name, file->path);
    if (status)
        return status;
    file->buffer = moor_heap_alloc(MOOR_SNAP_BUFFER);
    if (!file->buffer)
        return moor_fail(MOOR_E_NOMEM, "snapshot %s: no memory for its buffer", file->path);
    status = open_dir(dir, 1, &file->dir_fd);
    if (!status)
        status = take_temporary(file);
    if (!status && (may("ftruncate", NULL) || ftruncate(file->fd, 0) < 0))
        status = moor_fail_errno(MOOR_E_IO, errno, "snapshot %s: %s cannot be emptied", file->path, file->temporary);
    if (!status)
        status = moor_snapfile_put(file, nothing, sizeof(nothing));
    file->section_begin = file->at;
    if (status)
        moor_snapfile_close(file);
    return status;
}

/* No file and no directory entry was changed that anybody reads. */
static moor_status in_time(const moor_snapfile *file)
{
    if (file->cancel && atomic_load(file->cancel))
        return moor_fail(MOOR_E_CLOSED, "snapshot %s: given up after %llu bytes, the store is closing", file->path,
                         (unsigned long long)file->at);
    if (moor_now_ns() >= file->deadline_ns)
        return moor_fail(MOOR_E_TIMEOUT, "snapshot %s: not complete at the deadline, %llu bytes were written",
                         file->path, (unsigned long long)file->at);
    return MOOR_OK;
}

static moor_status write_all(moor_snapfile *file, const uint8_t *data, size_t n)
{
    while (n) {
        size_t part = n < MOOR_SNAP_BUFFER ? n : MOOR_SNAP_BUFFER; /* so that the deadline is looked at */
        moor_status status = in_time(file);
        if (!status)
            status = moor_file_fits(file->path, file->written + part);
        if (status)
            return status;
        ssize_t wrote = may("write", &part) ? -1 : write(file->fd, data, part);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return moor_fail_errno(MOOR_E_IO, wrote ? errno : EIO, "snapshot %s: a write of %zu bytes", file->path, n);
        data += wrote;
        n -= (size_t)wrote;
        file->written += (uint64_t)wrote;
        file->unsynced += (uint64_t)wrote;
        if (file->unsynced < MOOR_SNAP_SYNC)
            continue;
        file->unsynced = 0;
        if (may("fdatasync", NULL) || fdatasync(file->fd) < 0)
            return moor_fail_errno(MOOR_E_IO, errno, "snapshot %s: fdatasync", file->path);
    }
    return MOOR_OK;
}

static moor_status flush(moor_snapfile *file)
{
    size_t n = file->used;
    file->used = 0;
    return write_all(file, file->buffer, n);
}

moor_status moor_snapfile_put(moor_snapfile *file, const void *data, size_t n)
{
    moor_status status = MOOR_OK;
    file->at += n;
    if (n > MOOR_SNAP_BUFFER - file->used)
        status = flush(file);
    if (!status && n > MOOR_SNAP_BUFFER)
        return write_all(file, data, n);
    if (!status && n) {
        memcpy(file->buffer + file->used, data, n);
        file->used += n;
    }
    return status;
}

void moor_snapfile_section(moor_snapfile *file, uint32_t kind, uint64_t checksum)
{
    uint8_t *entry = &file->table[(size_t)file->sections++ * MOOR_SNAP_ENTRY];
    moor_le32_store(entry, kind);
    moor_le32_store(entry + 4, 0);
    moor_le64_store(entry + 8, file->section_begin);
    moor_le64_store(entry + 16, file->at - file->section_begin);
    moor_le64_store(entry + 24, checksum);
    file->section_begin = file->at;
}

static void make_header(const moor_snapfile *file, uint64_t table, uint8_t header[MOOR_SNAP_HEADER])
{
    memcpy(header, magic, sizeof(magic));
    moor_le32_store(header + 8, MOOR_SNAP_FORMAT);
    moor_le32_store(header + 12, file->sections);
    moor_le64_store(header + 16, file->at);
    moor_le64_store(header + 24, table);
    moor_le64_store(header + 32, XXH3_64bits(file->table, (size_t)file->sections * MOOR_SNAP_ENTRY));
    moor_le64_store(header + 40, (uint64_t)time(NULL));
    moor_le64_store(header + 48, 0);
    moor_le64_store(header + 56, XXH3_64bits(header, 56));
}

moor_status moor_snapfile_commit(moor_snapfile *file)
{
    uint8_t header[MOOR_SNAP_HEADER];
    uint64_t table = file->at;
    moor_status status = moor_snapfile_put(file, file->table, (size_t)file->sections * MOOR_SNAP_ENTRY);
    if (!status)
        status = flush(file);
    if (status)
        return status;
    make_header(file, table, header);
    size_t n = sizeof(header);
    const char *call = "write of the header";
    int bad = may(call, &n) || pwrite(file->fd, header, n, 0) != (ssize_t)sizeof(header);
    if (bad && n != sizeof(header))
        errno = ENOSPC; /* 64 bytes that lie there already are written whole or not at all */
    if (!bad)
        bad = may(call = "fsync", NULL) || fsync(file->fd) < 0;
    if (bad)
        return moor_fail_errno(MOOR_E_IO, errno, "snapshot %s: %s", file->path, call);
    status = in_time(file);
    if (status)
        return status;
    if (may("rename", NULL) || renameat(file->dir_fd, file->temporary, file->dir_fd, file->name) < 0)
        return moor_fail_errno(MOOR_E_IO, errno, "snapshot %s: rename of %s", file->path, file->temporary);
    file->temporary[0] = 0;
    if (sync_directory(file->dir_fd, "fsync of the directory", file->path) < 0)
        return moor_fail_errno(MOOR_E_IO, errno,
                               "snapshot %s is complete, but its directory may forget it in a power failure: fsync",
                               file->path);
    return MOOR_OK;
}

void moor_snapfile_close(moor_snapfile *file)
{
    if (file->fd >= 0) {
        if (file->temporary[0])
            (void)unlinkat(file->dir_fd, file->temporary, 0); /* while it is locked: it is ours */
        flock(file->fd, LOCK_UN);                             /* a forked child may have the descriptor too */
        close(file->fd);
    }
    if (file->dir_fd >= 0)
        close(file->dir_fd);
    moor_heap_free(file->buffer);
    file->buffer = NULL;
    file->fd = file->dir_fd = -1;
}

/* ---- reading ---- */

moor_status moor_snapsource_bytes(const moor_snapsource *source, uint64_t offset, void *out, size_t n)
{
    uint8_t *to = out;
    for (size_t done = 0; done < n;) {
        size_t part = n - done;
        ssize_t got = may("read", &part) ? -1 : pread(source->fd, to + done, part, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return moor_fail_errno(MOOR_E_IO, errno, "snapshot %s: read of %zu bytes at offset %llu", source->path,
                                   n - done, (unsigned long long)(offset + done));
        if (!got)
            return moor_fail(MOOR_E_CORRUPT, "snapshot %s: the file ends at offset %llu, %llu bytes were expected",
                             source->path, (unsigned long long)(offset + done), (unsigned long long)source->size);
        done += (size_t)got;
    }
    return MOOR_OK;
}

static moor_status damaged(const moor_snapsource *source, const char *part, uint64_t offset, const char *what,
                           uint64_t found, uint64_t expected)
{
    return moor_fail(MOOR_E_CORRUPT, "snapshot %s: %s, offset %llu: %s is %#llx, expected %#llx", source->path, part,
                     (unsigned long long)offset, what, (unsigned long long)found, (unsigned long long)expected);
}

static moor_status check_table(moor_snapsource *source, const uint8_t *table, uint32_t sections, uint64_t table_at)
{
    uint64_t at = MOOR_SNAP_HEADER;
    for (uint32_t i = 0; i < sections; i++) {
        const uint8_t *entry = table + (size_t)i * MOOR_SNAP_ENTRY;
        uint64_t place = table_at + (uint64_t)i * MOOR_SNAP_ENTRY;
        uint32_t kind = moor_le32_load(entry);
        uint64_t offset = moor_le64_load(entry + 8), length = moor_le64_load(entry + 16);
        if (!kind || kind >= MOOR_SNAP_KINDS || source->section[kind].offset)
            return moor_fail(MOOR_E_CORRUPT, "snapshot %s: table, offset %llu: section of kind %u is %s", source->path,
                             (unsigned long long)place, kind,
                             kind && kind < MOOR_SNAP_KINDS ? "there twice" : "unknown");
        if (offset != at)
            return damaged(source, "table", place + 8, "the section's offset", offset, at);
        if (length > table_at - at)
            return damaged(source, "table", place + 16, "the section's length", length, table_at - at);
        source->section[kind] = (moor_snapsection){offset, length, moor_le64_load(entry + 24)};
        at += length;
    }
    if (at != table_at)
        return damaged(source, "table", table_at, "the end of the last section", at, table_at);
    for (uint32_t kind = MOOR_SNAP_MODEL; kind <= MOOR_SNAP_ROWS; kind++) {
        if (!source->section[kind].offset && kind != MOOR_SNAP_LABELS)
            return moor_fail(MOOR_E_CORRUPT, "snapshot %s: table, offset %llu: there is no section %s", source->path,
                             (unsigned long long)table_at, moor_snap_kind_name(kind));
    }
    return MOOR_OK;
}

static moor_status check_header(moor_snapsource *source, const uint8_t header[MOOR_SNAP_HEADER], uint64_t *table_at,
                                uint32_t *sections)
{
    if (memcmp(header, magic, sizeof(magic)))
        return moor_fail(MOOR_E_CORRUPT, "snapshot %s: header, offset 0: it begins with %#llx, not with \"MOORSNAP\"",
                         source->path, (unsigned long long)moor_le64_load(header));
    source->format = moor_le32_load(header + 8);
    if (source->format < MOOR_SNAP_FORMAT_OLDEST || source->format > MOOR_SNAP_FORMAT)
        return moor_fail(MOOR_E_VERSION, "snapshot %s: header, offset 8: format %u, this library reads %d to %d",
                         source->path, source->format, MOOR_SNAP_FORMAT_OLDEST, MOOR_SNAP_FORMAT);
    uint64_t checksum = XXH3_64bits(header, 56);
    if (moor_le64_load(header + 56) != checksum)
        return damaged(source, "header", 56, "the checksum", checksum, moor_le64_load(header + 56));
    *sections = moor_le32_load(header + 12);
    *table_at = moor_le64_load(header + 24);
    if (moor_le64_load(header + 16) != source->size)
        return damaged(source, "header", 16, "the size of the file", source->size, moor_le64_load(header + 16));
    if (*sections >= MOOR_SNAP_KINDS)
        return damaged(source, "header", 12, "the number of sections", *sections, MOOR_SNAP_KINDS - 1);
    uint64_t bytes = (uint64_t)*sections * MOOR_SNAP_ENTRY;
    if (*table_at < MOOR_SNAP_HEADER || *table_at > source->size || source->size - *table_at != bytes)
        return damaged(source, "header", 24, "the table's offset", *table_at, source->size - bytes);
    return MOOR_OK;
}

static moor_status read_frame(moor_snapsource *source)
{
    uint8_t header[MOOR_SNAP_HEADER], table[MOOR_SNAP_KINDS * MOOR_SNAP_ENTRY];
    uint64_t table_at = 0;
    uint32_t sections = 0;
    if (source->size < sizeof(header))
        return damaged(source, "header", 0, "the size of the file", source->size, sizeof(header));
    moor_status status = moor_snapsource_bytes(source, 0, header, sizeof(header));
    if (!status)
        status = check_header(source, header, &table_at, &sections);
    size_t bytes = (size_t)sections * MOOR_SNAP_ENTRY;
    if (!status)
        status = moor_snapsource_bytes(source, table_at, table, bytes);
    if (status)
        return status;
    uint64_t checksum = XXH3_64bits(table, bytes);
    if (checksum != moor_le64_load(header + 32))
        return damaged(source, "table", table_at, "the checksum", checksum, moor_le64_load(header + 32));
    return check_table(source, table, sections, table_at);
}

moor_status moor_snapsource_open(moor_snapsource *source, const char *dir, const char *name)
{
    struct stat st;
    memset(source, 0, sizeof(*source));
    source->fd = -1;
    moor_status status = check_path(dir, name, source->path);
    if (status)
        return status;
    source->fd = may("open to read", NULL) ? -1 : open(source->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (source->fd < 0)
        return moor_fail_errno(errno == ENOENT ? MOOR_E_NOT_FOUND : MOOR_E_IO, errno, "snapshot %s", source->path);
    if (fstat(source->fd, &st) < 0)
        status = moor_fail_errno(MOOR_E_IO, errno, "snapshot %s: fstat", source->path);
    else if (!S_ISREG(st.st_mode))
        status = moor_fail(MOOR_E_INVALID, "snapshot %s is not a regular file", source->path);
    else
        source->size = (uint64_t)st.st_size;
    if (!status)
        status = read_frame(source);
    if (status)
        moor_snapsource_close(source);
    return status;
}

moor_status moor_snapsource_read(const moor_snapsource *source, uint32_t kind, uint8_t **memory,
                                 moor_snapreader *reader)
{
    const moor_snapsection *section = &source->section[kind];
    const char *name = moor_snap_kind_name(kind);
    *reader = (moor_snapreader){.path = source->path, .section = name, .offset = section->offset};
    *memory = NULL;
    if (!section->length)
        return MOOR_OK;
    uint8_t *data = moor_heap_alloc((size_t)section->length);
    if (!data)
        return moor_fail(MOOR_E_NOMEM, "snapshot %s: no memory for the %llu bytes of section %s", source->path,
                         (unsigned long long)section->length, name);
    moor_status status = moor_snapsource_bytes(source, section->offset, data, (size_t)section->length);
    uint64_t checksum = status ? 0 : XXH3_64bits(data, (size_t)section->length);
    if (!status && checksum != section->checksum)
        status = moor_fail(MOOR_E_CORRUPT,
                           "snapshot %s: section %s, offset %llu: the checksum of its %llu bytes is %#llx, expected "
                           "%#llx",
                           source->path, name, (unsigned long long)section->offset, (unsigned long long)section->length,
                           (unsigned long long)checksum, (unsigned long long)section->checksum);
    if (status) {
        moor_heap_free(data);
        return status;
    }
    reader->data = data;
    reader->length = (size_t)section->length;
    *memory = data;
    return MOOR_OK;
}

void moor_snapsource_close(moor_snapsource *source)
{
    if (source->fd >= 0)
        close(source->fd);
    source->fd = -1;
}
