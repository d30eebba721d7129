// FASTER behind the table of functions: its C++ templates, with updates in place.
//
// Keys and values have any length. A value has room behind it, so that what is appended goes into
// its place; when the room is used up the record is copied with twice as much.

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "core/faster.h"
#include "device/file_system_disk.h"

#include "store.h"

namespace {

using namespace FASTER::core;

// A record has to fit into a page of the log, which has 32 MiB.
const uint64_t kValueBytesMax = 15u << 20;
const uint64_t kPageBytes = 32u << 20;
const uint64_t kLogBytesMin = 6 * kPageBytes;
const uint64_t kOperationsARefresh = 256;

uint64_t hash_of(const char *bytes, size_t count) {
  uint64_t hash = 0x9e3779b97f4a7c15ull ^ count;
  while (count >= 8) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    hash = (hash ^ word) * 0xbf58476d1ce4e5b9ull;
    hash ^= hash >> 32;
    bytes += 8;
    count -= 8;
  }
  uint64_t word = 0;
  std::memcpy(&word, bytes, count);
  hash = (hash ^ word) * 0x94d049bb133111ebull;
  hash ^= hash >> 29;
  hash *= 0xbf58476d1ce4e5b9ull;
  return hash ^ hash >> 32;
}

// A key in the log.
struct Key {
  uint32_t bytes;

  const char *data() const { return reinterpret_cast<const char *>(this + 1); }
  uint32_t size() const { return static_cast<uint32_t>(sizeof(Key)) + bytes; }
  KeyHash GetHash() const { return KeyHash{hash_of(data(), bytes)}; }
  bool operator==(const Key &other) const {
    return bytes == other.bytes && std::memcmp(data(), other.data(), bytes) == 0;
  }
  bool operator!=(const Key &other) const { return !(*this == other); }
};

// A key that the caller has.
struct LentKey {
  const char *start;
  uint32_t bytes;

  uint32_t size() const { return static_cast<uint32_t>(sizeof(Key)) + bytes; }
  KeyHash GetHash() const { return KeyHash{hash_of(start, bytes)}; }
  void write_deep_key_at(Key *to) const {
    to->bytes = bytes;
    std::memcpy(to + 1, start, bytes);
  }
  bool operator==(const Key &other) const {
    return bytes == other.bytes && std::memcmp(start, other.data(), bytes) == 0;
  }
  bool operator!=(const Key &other) const { return !(*this == other); }
};

struct alignas(8) Value {
  uint32_t room;
  uint32_t bytes;

  char *data() { return reinterpret_cast<char *>(this + 1); }
  const char *data() const { return reinterpret_cast<const char *>(this + 1); }
  uint32_t size() const { return static_cast<uint32_t>(sizeof(Value)) + room; }
};

// Room for so many bytes: a multiple of 16.
uint32_t room_for(uint32_t bytes) { return (bytes + 15) / 16 * 16; }

// What a call found out, also if it ended later.
struct Told {
  bool found = false;
  Status status = Status::Ok;
  visit_fn see = nullptr;
  void *context = nullptr;
};

class Context : public IAsyncContext {
 public:
  typedef Key key_t;
  typedef Value value_t;

  Context(LentKey key, Told &told) : key_{key}, told_{&told} {}
  const LentKey &key() const { return key_; }

  void finds(const Value &value) {
    told_->found = true;
    if (told_->see != nullptr) {
      told_->see(told_->context, key_.start, key_.bytes, value.data(), value.bytes);
    }
  }
  void ended(Status status) { told_->status = status; }

 protected:
  LentKey key_;
  Told *told_;
};

class ReadContext : public Context {
 public:
  using Context::Context;
  void Get(const Value &value) { finds(value); }
  void GetAtomic(const Value &value) { finds(value); }

 protected:
  Status DeepCopy_Internal(IAsyncContext *&copy) {
    return IAsyncContext::DeepCopy_Internal(*this, copy);
  }
};

class UpsertContext : public Context {
 public:
  UpsertContext(LentKey key, Told &told, const char *value, uint32_t bytes)
      : Context{key, told}, value_{value}, bytes_{bytes} {}
  uint32_t value_size() const { return static_cast<uint32_t>(sizeof(Value)) + room_for(bytes_); }
  void Put(Value &value) {
    value.room = room_for(bytes_);
    value.bytes = bytes_;
    std::memcpy(value.data(), value_, bytes_);
  }
  bool PutAtomic(Value &value) {
    if (value.room < bytes_) return false;
    value.bytes = bytes_;
    std::memcpy(value.data(), value_, bytes_);
    return true;
  }

 protected:
  Status DeepCopy_Internal(IAsyncContext *&copy) {
    return IAsyncContext::DeepCopy_Internal(*this, copy);
  }

 private:
  const char *value_;
  uint32_t bytes_;
};

// Appends.
class MergeContext : public Context {
 public:
  MergeContext(LentKey key, Told &told, const char *value, uint32_t bytes)
      : Context{key, told}, value_{value}, bytes_{bytes} {}
  uint32_t value_size() const { return static_cast<uint32_t>(sizeof(Value)) + room_for(bytes_); }
  uint32_t value_size(const Value &old) const {
    return static_cast<uint32_t>(sizeof(Value)) + room_after(old);
  }
  void RmwInitial(Value &value) {
    value.room = room_for(bytes_);
    value.bytes = bytes_;
    std::memcpy(value.data(), value_, bytes_);
  }
  void RmwCopy(const Value &old, Value &value) {
    value.room = room_after(old);
    value.bytes = old.bytes;
    std::memcpy(value.data(), old.data(), old.bytes);
    append(value);
  }
  bool RmwAtomic(Value &value) {
    if (value.bytes + bytes_ > value.room) return false;
    append(value);
    return true;
  }

 protected:
  Status DeepCopy_Internal(IAsyncContext *&copy) {
    return IAsyncContext::DeepCopy_Internal(*this, copy);
  }

 private:
  uint32_t room_after(const Value &old) const {
    uint32_t sum = old.bytes + bytes_;
    return sum > old.room ? room_for(sum) * 2 : old.room;
  }
  void append(Value &value) {
    std::memcpy(value.data() + value.bytes, value_, bytes_);
    value.bytes += bytes_;
  }
  const char *value_;
  uint32_t bytes_;
};

// Adds to a count and a sum.
class SumContext : public Context {
 public:
  SumContext(LentKey key, Told &told, uint64_t count, uint64_t sum)
      : Context{key, told}, count_{count}, sum_{sum} {}
  uint32_t value_size() const { return sizeof(Value) + 16; }
  uint32_t value_size(const Value &) const { return value_size(); }
  void RmwInitial(Value &value) {
    value.room = 16;
    write(value, count_, sum_);
  }
  void RmwCopy(const Value &old, Value &value) {
    value.room = 16;
    add(old, value);
  }
  bool RmwAtomic(Value &value) {
    add(value, value);
    return true;
  }

 protected:
  Status DeepCopy_Internal(IAsyncContext *&copy) {
    return IAsyncContext::DeepCopy_Internal(*this, copy);
  }

 private:
  void add(const Value &old, Value &value) {
    finds(old);
    uint64_t count = count_, sum = sum_;
    // Absorbed accumulators stand behind the first.
    for (uint32_t at = 0; at + 16 <= old.bytes; at += 16) {
      uint64_t part[2];
      std::memcpy(part, old.data() + at, 16);
      count += part[0];
      sum += part[1];
    }
    write(value, count, sum);
  }
  static void write(Value &value, uint64_t count, uint64_t sum) {
    value.bytes = 16;
    std::memcpy(value.data(), &count, 8);
    std::memcpy(value.data() + 8, &sum, 8);
  }
  uint64_t count_;
  uint64_t sum_;
};

class DeleteContext : public Context {
 public:
  using Context::Context;
  uint32_t value_size() const { return sizeof(Value); }

 protected:
  Status DeepCopy_Internal(IAsyncContext *&copy) {
    return IAsyncContext::DeepCopy_Internal(*this, copy);
  }
};

typedef FASTER::environment::QueueIoHandler Handler;
typedef FASTER::device::FileSystemDisk<Handler, 1073741824L> Disk;
typedef FasterKv<Key, Value, Disk> Faster;

struct Store {
  std::unique_ptr<Faster> kv;
  uint64_t operations = 0;
  std::string words;

  uint64_t next() {
    if (++operations % kOperationsARefresh == 0) kv->Refresh();
    return operations;
  }

  // Waits for what reads storage; 1 if a value was found.
  int ended(Status status, Told &told) {
    if (status == Status::Pending) {
      kv->CompletePending(true);
      status = told.status;
    }
    if (status == Status::Ok) return told.found ? 1 : 0;
    if (status == Status::NotFound) return 0;
    words = "FASTER ended with status " + std::to_string(static_cast<int>(status));
    return -1;
  }
};

Store &of(void *store) { return *static_cast<Store *>(store); }

template <class C>
void completed(IAsyncContext *context, Status status) {
  CallbackContext<C> own{context};
  own->ended(status);
}

LentKey lent(const char *key, size_t bytes) { return LentKey{key, static_cast<uint32_t>(bytes)}; }

uint64_t power_below(uint64_t number) {
  uint64_t power = 1;
  while (power * 2 <= number) power *= 2;
  return power;
}

void *open_store(const char *directory, uint64_t memory, uint64_t keys, char *error,
                 size_t error_bytes) try {
  // A bucket of 64 bytes has 7 entries; at most a quarter of the memory is buckets.
  uint64_t most = power_below(memory / 4 / 64);
  uint64_t buckets = power_below(keys / 2 < 1024 ? 1024 : keys / 2);
  if (buckets > most) buckets = most;
  uint64_t rest = memory > buckets * 64 ? memory - buckets * 64 : 0;
  uint64_t log = rest / kPageBytes * kPageBytes;
  if (log < kLogBytesMin) log = kLogBytesMin;
  // The log wants four pages that are not mutable.
  double pages = static_cast<double>(log / kPageBytes);
  double share = (pages - 3.9) / pages;
  if (share > 0.87) share = 0.87;
  auto store = std::make_unique<Store>();
  store->kv = std::make_unique<Faster>(buckets, log, std::string(directory) + "/", share);
  store->kv->StartSession();
  return store.release();
} catch (const std::exception &problem) {
  std::strncpy(error, problem.what(), error_bytes - 1);
  return nullptr;
}

int get(void *to, const char *key, size_t key_bytes, visit_fn see, void *context) {
  Store &store = of(to);
  Told told;
  told.see = see;
  told.context = context;
  ReadContext reads{lent(key, key_bytes), told};
  return store.ended(store.kv->Read(reads, completed<ReadContext>, store.next()), told);
}

int too_long(Store &store) {
  store.words = "a value of more than 15 MiB, which a page of the log has no room for";
  return -1;
}

int put(void *to, const char *key, size_t key_bytes, const char *value, size_t value_bytes) {
  Store &store = of(to);
  if (value_bytes > kValueBytesMax) return too_long(store);
  Told told;
  UpsertContext puts{lent(key, key_bytes), told, value, static_cast<uint32_t>(value_bytes)};
  return store.ended(store.kv->Upsert(puts, completed<UpsertContext>, store.next()), told);
}

int merge(void *to, const char *key, size_t key_bytes, const char *value, size_t value_bytes) {
  Store &store = of(to);
  if (value_bytes > kValueBytesMax / 2) return too_long(store);
  Told told;
  MergeContext merges{lent(key, key_bytes), told, value, static_cast<uint32_t>(value_bytes)};
  return store.ended(store.kv->Rmw(merges, completed<MergeContext>, store.next()), told);
}

int update(void *to, const char *key, size_t key_bytes, uint64_t count, uint64_t sum, visit_fn see,
           void *context) {
  Store &store = of(to);
  Told told;
  told.see = see;
  told.context = context;
  SumContext sums{lent(key, key_bytes), told, count, sum};
  return store.ended(store.kv->Rmw(sums, completed<SumContext>, store.next()), told);
}

int remove_key(void *to, const char *key, size_t key_bytes) {
  Store &store = of(to);
  Told told;
  DeleteContext deletes{lent(key, key_bytes), told};
  return store.ended(store.kv->Delete(deletes, completed<DeleteContext>, store.next()), told);
}

const char *error_of(void *store) { return of(store).words.c_str(); }

void close_store(void *to) {
  std::unique_ptr<Store> store(static_cast<Store *>(to));
  store->kv->CompletePending(true);
  store->kv->StopSession();
}

const char *version() { return "C++ of libfaster-sys 0.11.0"; }

const store_api api = {version, open_store, get,     put,     merge,    remove_key,
                       update,  nullptr,    nullptr, nullptr, error_of, close_store};

}  // namespace

extern "C" const store_api *peers_faster() { return &api; }
