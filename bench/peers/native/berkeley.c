/* BerkeleyDB behind the table of functions: a B-tree in a private cache, no log, no transactions. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <db.h>

#include "store.h"

typedef struct store {
  DB_ENV *env;
  DB *db;
  char *value;
  size_t room;
  char words[256];
} store;

static int ended(store *to, int code) {
  if (code == 0) return 0;
  snprintf(to->words, sizeof to->words, "%s", db_strerror(code));
  return -1;
}

static void close_store(void *to) {
  store *store_at = to;
  if (store_at->db != NULL) store_at->db->close(store_at->db, 0);
  if (store_at->env != NULL) store_at->env->close(store_at->env, 0);
  free(store_at->value);
  free(store_at);
}

static void *open_store(const char *directory, uint64_t memory, uint64_t keys, char *error,
                        size_t error_bytes) {
  (void)keys;
  store *to = calloc(1, sizeof *to);
  if (to == NULL) return NULL;
  uint64_t cache = memory / 4 * 3;
  int code = db_env_create(&to->env, 0);
  if (code == 0) {
    code = to->env->set_cachesize(to->env, (u_int32_t)(cache >> 30),
                                  (u_int32_t)(cache & 0x3fffffff), 1);
  }
  if (code == 0) {
    code = to->env->open(to->env, directory, DB_CREATE | DB_INIT_MPOOL | DB_PRIVATE, 0600);
  }
  if (code == 0) code = db_create(&to->db, to->env, 0);
  if (code == 0) code = to->db->set_pagesize(to->db, 4096);
  if (code == 0) {
    code = to->db->open(to->db, NULL, "store.db", NULL, DB_BTREE, DB_CREATE, 0600);
  }
  if (code != 0) {
    snprintf(error, error_bytes, "%s", db_strerror(code));
    close_store(to);
    return NULL;
  }
  return to;
}

static DBT bytes_of(const char *bytes, size_t count) {
  DBT thing;
  memset(&thing, 0, sizeof thing);
  thing.data = (void *)bytes;
  thing.size = (u_int32_t)count;
  return thing;
}

/* Reads into the store's own memory, with room for `more` bytes behind the value. */
static int read_value(store *to, const char *key, size_t key_bytes, size_t more, size_t *found) {
  for (;;) {
    DBT name = bytes_of(key, key_bytes), value = bytes_of(to->value, 0);
    value.ulen = (u_int32_t)(to->room > more ? to->room - more : 0);
    value.flags = DB_DBT_USERMEM;
    int code = to->db->get(to->db, NULL, &name, &value, 0);
    *found = value.size;
    if (code != DB_BUFFER_SMALL) return code;
    size_t room = ((size_t)value.size + more) * 2;
    char *larger = realloc(to->value, room);
    if (larger == NULL) return DB_BUFFER_SMALL;
    to->value = larger;
    to->room = room;
  }
}

static int get(void *at, const char *key, size_t key_bytes, visit_fn see, void *context) {
  store *to = at;
  size_t found;
  int code = read_value(to, key, key_bytes, 0, &found);
  if (code == DB_NOTFOUND) return 0;
  if (code != 0) return ended(to, code);
  see(context, key, key_bytes, to->value, found);
  return 1;
}

static int put(void *at, const char *key, size_t key_bytes, const char *value, size_t value_bytes) {
  store *to = at;
  DBT name = bytes_of(key, key_bytes), thing = bytes_of(value, value_bytes);
  return ended(to, to->db->put(to->db, NULL, &name, &thing, 0));
}

static int merge(void *at, const char *key, size_t key_bytes, const char *value,
                 size_t value_bytes) {
  store *to = at;
  size_t found;
  int code = read_value(to, key, key_bytes, value_bytes, &found);
  if (code == DB_NOTFOUND) return put(at, key, key_bytes, value, value_bytes);
  if (code != 0) return ended(to, code);
  memcpy(to->value + found, value, value_bytes);
  return put(at, key, key_bytes, to->value, found + value_bytes);
}

static int remove_key(void *at, const char *key, size_t key_bytes) {
  store *to = at;
  DBT name = bytes_of(key, key_bytes);
  int code = to->db->del(to->db, NULL, &name, 0);
  return code == DB_NOTFOUND ? 0 : ended(to, code);
}

static int compare(const DBT *key, const char *until, size_t until_bytes) {
  size_t shorter = key->size < until_bytes ? key->size : until_bytes;
  int order = memcmp(key->data, until, shorter);
  if (order != 0) return order;
  return key->size < until_bytes ? -1 : key->size > until_bytes;
}

static int range(void *at, const char *from, size_t from_bytes, const char *until,
                 size_t until_bytes, visit_fn visit, void *context) {
  store *to = at;
  DBC *cursor;
  int code = to->db->cursor(to->db, NULL, &cursor, 0);
  if (code != 0) return ended(to, code);
  DBT key = bytes_of(from, from_bytes), value = bytes_of(NULL, 0);
  code = cursor->get(cursor, &key, &value, DB_SET_RANGE);
  while (code == 0 && compare(&key, until, until_bytes) <= 0) {
    visit(context, key.data, key.size, value.data, value.size);
    code = cursor->get(cursor, &key, &value, DB_NEXT);
  }
  int closed = cursor->close(cursor);
  return ended(to, code == DB_NOTFOUND || code == 0 ? closed : code);
}

static int checkpoint(void *at) {
  store *to = at;
  return ended(to, to->db->sync(to->db, 0));
}

static const char *error_of(void *at) { return ((store *)at)->words; }
static const char *version(void) { return db_version(NULL, NULL, NULL); }

static const store_api api = {version, open_store, get,  put,        merge,    remove_key,
                              NULL,    range,      NULL, checkpoint, error_of, close_store};

const store_api *peers_berkeley(void) { return &api; }
