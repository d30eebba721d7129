/* What a native store shows of itself: one table of functions, the same for all.
 * A function returns 0, or 1 for "found", or -1 with words in `error` of the handle. */
#ifndef ALLUVIUM_PEERS_STORE_H
#define ALLUVIUM_PEERS_STORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*visit_fn)(void *context, const char *key, size_t key_bytes, const char *value,
                         size_t value_bytes);

typedef struct store_api {
  const char *(*version)(void);
  /* Null, with words in `error`, if it cannot be opened. */
  void *(*open)(const char *directory, uint64_t memory_bytes, uint64_t keys, char *error,
                size_t error_bytes);
  int (*get)(void *store, const char *key, size_t key_bytes, visit_fn see, void *context);
  int (*put)(void *store, const char *key, size_t key_bytes, const char *value, size_t value_bytes);
  int (*merge)(void *store, const char *key, size_t key_bytes, const char *value,
               size_t value_bytes);
  int (*remove)(void *store, const char *key, size_t key_bytes);
  /* Null where the store has no read-modify-write of its own. */
  int (*update)(void *store, const char *key, size_t key_bytes, uint64_t count, uint64_t sum,
                visit_fn see, void *context);
  /* Null where the store has no order. Both ends are included. */
  int (*range)(void *store, const char *from, size_t from_bytes, const char *to, size_t to_bytes,
               visit_fn visit, void *context);
  /* Null where keys are removed one by one. Removes from `from` on, before `to`. */
  int (*remove_range)(void *store, const char *from, size_t from_bytes, const char *to,
                      size_t to_bytes);
  /* Null where nothing is made durable. */
  int (*checkpoint)(void *store);
  const char *(*error)(void *store);
  void (*close)(void *store);
} store_api;

#ifdef __cplusplus
}
#endif
#endif
