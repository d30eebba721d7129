// A library that is loaded before libc (LD_PRELOAD) and makes calls fail, or do a part of their work,
// for files below one directory. By seed; what was done is written to a file when the process ends.
//
//   ALLUVIUM_SHIM_DIRECTORY  the directory, an absolute path
//   ALLUVIUM_SHIM_SEED       a number
//   ALLUVIUM_SHIM_OF         one call of so many fails, or does a part
//   ALLUVIUM_SHIM_GENTLE     1: nothing fails; calls do a part, or are interrupted
//   ALLUVIUM_SHIM_UNSYNCED   a path, inside or not: its fsync always fails
//   ALLUVIUM_SHIM_REPORT     the file: for each kind of call a line "name seen short interrupted failed"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum call { PREAD, PWRITE, FSYNC, FDATASYNC, OPEN, RENAME, CALLS };
static const char *const names[CALLS] = {"pread", "pwrite", "fsync", "fdatasync", "open", "rename"};
enum fate { WHOLE, SHORT, INTERRUPTED, FAILED };

static atomic_ulong counts[CALLS][4];
static atomic_ulong state;
static unsigned long one_of;
static int gentle;
static char directory[PATH_MAX], unsynced[PATH_MAX];

static void start(void) {
    static atomic_int started;
    if (atomic_exchange(&started, 1)) return;
    const char *text = getenv("ALLUVIUM_SHIM_DIRECTORY");
    if (text) snprintf(directory, sizeof directory, "%s", text);
    text = getenv("ALLUVIUM_SHIM_UNSYNCED");
    if (text) snprintf(unsynced, sizeof unsynced, "%s", text);
    text = getenv("ALLUVIUM_SHIM_SEED");
    atomic_store(&state, text ? strtoul(text, NULL, 10) : 0);
    text = getenv("ALLUVIUM_SHIM_OF");
    one_of = text ? strtoul(text, NULL, 10) : 0;
    text = getenv("ALLUVIUM_SHIM_GENTLE");
    gentle = text && *text == '1';
}

__attribute__((constructor)) static void at_start(void) { start(); }

__attribute__((destructor)) static void report(void) {
    const char *path = getenv("ALLUVIUM_SHIM_REPORT");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    for (int call = 0; call < CALLS; call++)
        fprintf(file, "%s %lu %lu %lu %lu\n", names[call], counts[call][WHOLE],
                counts[call][SHORT], counts[call][INTERRUPTED], counts[call][FAILED]);
    fclose(file);
}

// splitmix64
static unsigned long chance(unsigned long below) {
    uint64_t mixed = atomic_fetch_add(&state, 0x9E3779B97F4A7C15ul) + 0x9E3779B97F4A7C15ul;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ul;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBul;
    return (mixed ^ (mixed >> 31)) % below;
}

static int is_inside(const char *path) {
    size_t len = strlen(directory);
    return len > 0 && strncmp(path, directory, len) == 0;
}

static int has_path(int fd, char path[PATH_MAX]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, PATH_MAX - 1);
    if (len < 0) return 0;
    path[len] = 0;
    return 1;
}

static int is_of_it(int fd) {
    char path[PATH_MAX];
    return has_path(fd, path) && is_inside(path);
}

static int is_path_of_it(int at, const char *path) {
    return path[0] == '/' ? is_inside(path) : at != AT_FDCWD && is_of_it(at);
}

// What becomes of a call. It is counted as seen in any case.
static enum fate fate_of(enum call call, int can_be_short, int can_be_interrupted) {
    start();
    atomic_fetch_add(&counts[call][WHOLE], 1);
    if (!one_of) return WHOLE;
    // There are few of these.
    unsigned long of = (call == RENAME || call == FSYNC) && one_of > 6 ? 6 : one_of;
    if (chance(of)) return WHOLE;
    enum fate fates[3];
    unsigned long n = 0;
    if (can_be_short) fates[n++] = SHORT;
    if (can_be_interrupted) fates[n++] = INTERRUPTED;
    if (!gentle) fates[n++] = FAILED;
    if (!n) return WHOLE;
    enum fate fate = fates[chance(n)];
    atomic_fetch_add(&counts[call][fate], 1);
    if (fate == INTERRUPTED) errno = EINTR;
    return fate;
}

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

// A part of `bytes`, not nothing; whole blocks where the file is open for direct I/O.
static size_t part_of(int fd, size_t bytes) {
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_DIRECT)) return (1 + chance(bytes / 4096 - 1)) * 4096;
    return 1 + chance(bytes - 1);
}

static int can_be_short(int fd, size_t bytes) {
    int flags = fcntl(fd, F_GETFL);
    return bytes >= (flags >= 0 && (flags & O_DIRECT) ? 8192 : 2);
}

typedef ssize_t (*pread_fn)(int, void *, size_t, off64_t);
typedef ssize_t (*pwrite_fn)(int, const void *, size_t, off64_t);

ssize_t pread64(int fd, void *bytes, size_t count, off64_t offset) {
    pread_fn next = (pread_fn)real("pread64");
    if (!is_of_it(fd)) return next(fd, bytes, count, offset);
    switch (fate_of(PREAD, can_be_short(fd, count), 1)) {
    case SHORT: return next(fd, bytes, part_of(fd, count), offset);
    case INTERRUPTED: return -1;
    case FAILED: errno = EIO; return -1;
    default: return next(fd, bytes, count, offset);
    }
}

ssize_t pread(int fd, void *bytes, size_t count, off_t offset) {
    return pread64(fd, bytes, count, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset) {
    pwrite_fn next = (pwrite_fn)real("pwrite64");
    if (!is_of_it(fd)) return next(fd, bytes, count, offset);
    switch (fate_of(PWRITE, can_be_short(fd, count), 1)) {
    case SHORT: return next(fd, bytes, part_of(fd, count), offset);
    case INTERRUPTED: return -1;
    case FAILED: errno = chance(2) ? EIO : ENOSPC; return -1;
    default: return next(fd, bytes, count, offset);
    }
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) {
    return pwrite64(fd, bytes, count, offset);
}

static int sync_with(enum call call, int fd) {
    int (*next)(int) = (int (*)(int))real(names[call]);
    char path[PATH_MAX];
    start();
    if (unsynced[0] && has_path(fd, path) && strcmp(path, unsynced) == 0) {
        errno = EIO;
        return -1;
    }
    if (!is_of_it(fd)) return next(fd);
    switch (fate_of(call, 0, 1)) {
    case INTERRUPTED: return -1;
    case FAILED: errno = EIO; return -1;
    default: return next(fd);
    }
}

int fsync(int fd) { return sync_with(FSYNC, fd); }
int fdatasync(int fd) { return sync_with(FDATASYNC, fd); }

static int refuses_open(int at, const char *path) {
    if (!is_path_of_it(at, path)) return 0;
    switch (fate_of(OPEN, 0, 1)) {
    case INTERRUPTED: return 1;
    case FAILED: errno = chance(2) ? EMFILE : EIO; return 1;
    default: return 0;
    }
}

#define MODE(flags, mode)                                                                          \
    mode_t mode = 0;                                                                               \
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {                                   \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode = va_arg(rest, mode_t);                                                               \
        va_end(rest);                                                                              \
    }

int open64(const char *path, int flags, ...) {
    MODE(flags, mode)
    if (refuses_open(AT_FDCWD, path)) return -1;
    return ((int (*)(const char *, int, ...))real("open64"))(path, flags, mode);
}

int open(const char *path, int flags, ...) {
    MODE(flags, mode)
    if (refuses_open(AT_FDCWD, path)) return -1;
    return ((int (*)(const char *, int, ...))real("open"))(path, flags, mode);
}

int openat64(int at, const char *path, int flags, ...) {
    MODE(flags, mode)
    if (refuses_open(at, path)) return -1;
    return ((int (*)(int, const char *, int, ...))real("openat64"))(at, path, flags, mode);
}

int openat(int at, const char *path, int flags, ...) {
    MODE(flags, mode)
    if (refuses_open(at, path)) return -1;
    return ((int (*)(int, const char *, int, ...))real("openat"))(at, path, flags, mode);
}

static int refuses_rename(int at, const char *path) {
    // Renames are not interrupted: they end or fail.
    if (!is_path_of_it(at, path) || fate_of(RENAME, 0, 0) != FAILED) return 0;
    errno = chance(2) ? EIO : ENOSPC;
    return 1;
}

int rename(const char *source, const char *target) {
    if (refuses_rename(AT_FDCWD, source)) return -1;
    return ((int (*)(const char *, const char *))real("rename"))(source, target);
}

int renameat(int from, const char *source, int to, const char *target) {
    if (refuses_rename(from, source)) return -1;
    int (*next)(int, const char *, int, const char *) =
        (int (*)(int, const char *, int, const char *))real("renameat");
    return next(from, source, to, target);
}
