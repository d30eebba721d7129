// RocksDB behind the table of functions: the settings are those that stream processors use.

#include <cstring>
#include <memory>
#include <string>

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/merge_operator.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/table_properties_collectors.h>
#include <rocksdb/version.h>

#include "store.h"

namespace {

using namespace rocksdb;

// Puts operands behind the value.
class Append : public AssociativeMergeOperator {
 public:
  bool Merge(const Slice &, const Slice *existing, const Slice &value, std::string *out,
             Logger *) const override {
    out->clear();
    if (existing != nullptr) out->assign(existing->data(), existing->size());
    out->append(value.data(), value.size());
    return true;
  }
  const char *Name() const override { return "append"; }
};

// Adds to a count and a sum, 16 bytes.
class Add : public AssociativeMergeOperator {
 public:
  bool Merge(const Slice &, const Slice *existing, const Slice &value, std::string *out,
             Logger *) const override {
    uint64_t sums[2] = {0, 0};
    for (const Slice *slice : {existing, &value}) {
      if (slice == nullptr) continue;
      if (slice->size() != sizeof(sums)) return false;
      uint64_t part[2];
      std::memcpy(part, slice->data(), sizeof(part));
      sums[0] += part[0];
      sums[1] += part[1];
    }
    out->assign(reinterpret_cast<const char *>(sums), sizeof(sums));
    return true;
  }
  const char *Name() const override { return "add"; }
};

struct Store {
  std::unique_ptr<DB> db;
  ReadOptions read;
  WriteOptions write;
  PinnableSlice found;
  std::string value;
  std::string words;
  bool merges = false;

  int ended(const Status &status) {
    if (status.ok()) return 0;
    words = status.ToString();
    return -1;
  }
};

Store &of(void *store) { return *static_cast<Store *>(store); }

Options options_of(uint64_t memory, bool compacts_deletes, bool adds) {
  BlockBasedTableOptions table;
  table.block_cache = NewLRUCache(memory / 2);
  table.filter_policy.reset(NewBloomFilterPolicy(10.0));
  table.data_block_index_type = BlockBasedTableOptions::kDataBlockBinaryAndHash;
  // Indexes and filters stay within the cache's memory.
  table.cache_index_and_filter_blocks = true;
  Options options;
  options.create_if_missing = true;
  options.compression = kNoCompression;
  options.write_buffer_size = memory / 8;
  options.max_write_buffer_number = 3;
  options.max_background_jobs = 2;
  options.level_compaction_dynamic_level_bytes = true;
  options.memtable_prefix_bloom_size_ratio = 0.05;
  options.memtable_whole_key_filtering = true;
  if (adds) {
    options.merge_operator = std::make_shared<Add>();
  } else {
    options.merge_operator = std::make_shared<Append>();
  }
  options.table_factory.reset(NewBlockBasedTableFactory(table));
  if (compacts_deletes) {
    // A file of which half of any 1,024 entries in a row are deletes is compacted.
    options.table_properties_collector_factories.push_back(
        NewCompactOnDeletionCollectorFactory(1024, 512));
  }
  return options;
}

void *open_with(const char *directory, uint64_t memory, bool merges, bool compacts_deletes,
                char *error, size_t error_bytes, bool adds = false) {
  auto store = std::make_unique<Store>();
  store->merges = merges;
  store->read.verify_checksums = false;
  store->write.disableWAL = true;
  DB *db = nullptr;
  Status status = DB::Open(options_of(memory, compacts_deletes, adds), directory, &db);
  if (!status.ok()) {
    std::strncpy(error, status.ToString().c_str(), error_bytes - 1);
    return nullptr;
  }
  store->db.reset(db);
  return store.release();
}

void *open_puts(const char *directory, uint64_t memory, uint64_t, char *error, size_t bytes) {
  return open_with(directory, memory, false, false, error, bytes);
}

void *open_merges(const char *directory, uint64_t memory, uint64_t, char *error, size_t bytes) {
  return open_with(directory, memory, true, false, error, bytes);
}

void *open_adds(const char *directory, uint64_t memory, uint64_t, char *error, size_t bytes) {
  return open_with(directory, memory, true, false, error, bytes, true);
}

void *open_deletes(const char *directory, uint64_t memory, uint64_t, char *error, size_t bytes) {
  return open_with(directory, memory, true, true, error, bytes);
}

int get(void *to, const char *key, size_t key_bytes, visit_fn see, void *context) {
  Store &store = of(to);
  store.found.Reset();
  Status status =
      store.db->Get(store.read, store.db->DefaultColumnFamily(), Slice(key, key_bytes), &store.found);
  if (status.IsNotFound()) return 0;
  if (!status.ok()) return store.ended(status);
  see(context, key, key_bytes, store.found.data(), store.found.size());
  return 1;
}

int put(void *to, const char *key, size_t key_bytes, const char *value, size_t value_bytes) {
  Store &store = of(to);
  return store.ended(store.db->Put(store.write, Slice(key, key_bytes), Slice(value, value_bytes)));
}

int merge(void *to, const char *key, size_t key_bytes, const char *value, size_t value_bytes) {
  Store &store = of(to);
  Slice name(key, key_bytes), more(value, value_bytes);
  if (store.merges) return store.ended(store.db->Merge(store.write, name, more));
  store.value.clear();
  Status status = store.db->Get(store.read, name, &store.value);
  if (!status.ok() && !status.IsNotFound()) return store.ended(status);
  store.value.append(value, value_bytes);
  return store.ended(store.db->Put(store.write, name, store.value));
}

int remove(void *to, const char *key, size_t key_bytes) {
  Store &store = of(to);
  return store.ended(store.db->Delete(store.write, Slice(key, key_bytes)));
}

int range(void *to, const char *from, size_t from_bytes, const char *until, size_t until_bytes,
          visit_fn visit, void *context) {
  Store &store = of(to);
  Slice last(until, until_bytes);
  std::unique_ptr<Iterator> at(store.db->NewIterator(store.read));
  for (at->Seek(Slice(from, from_bytes)); at->Valid() && at->key().compare(last) <= 0; at->Next()) {
    Slice key = at->key(), value = at->value();
    visit(context, key.data(), key.size(), value.data(), value.size());
  }
  return store.ended(at->status());
}

int remove_range(void *to, const char *from, size_t from_bytes, const char *until,
                 size_t until_bytes) {
  Store &store = of(to);
  return store.ended(store.db->DeleteRange(store.write, store.db->DefaultColumnFamily(),
                                           Slice(from, from_bytes), Slice(until, until_bytes)));
}

int checkpoint(void *to) {
  // Without a log what is flushed is what is durable.
  Store &store = of(to);
  return store.ended(store.db->Flush(FlushOptions()));
}

const char *error_of(void *store) { return of(store).words.c_str(); }
void close_store(void *store) { delete static_cast<Store *>(store); }

const char *version() {
  static const std::string words = GetRocksVersionAsString(true);
  return words.c_str();
}

const store_api by_puts = {version, open_puts, get, put, merge, remove, nullptr, range, remove_range,
                        checkpoint, error_of, close_store};
const store_api by_merges = {version, open_merges, get, put, merge, remove, nullptr, range, remove_range,
                          checkpoint, error_of, close_store};
const store_api by_adds = {version, open_adds, get, put, merge, remove, nullptr, range, remove_range,
                        checkpoint, error_of, close_store};
const store_api by_deletes = {version, open_deletes, get, put, merge, remove, nullptr, range,
                           remove_range, checkpoint, error_of, close_store};

}  // namespace

extern "C" const store_api *peers_rocksdb() { return &by_puts; }
extern "C" const store_api *peers_rocksdb_merge() { return &by_merges; }
extern "C" const store_api *peers_rocksdb_adds() { return &by_adds; }
extern "C" const store_api *peers_rocksdb_deletes() { return &by_deletes; }
