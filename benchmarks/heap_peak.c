// Preloaded into a rank: how many bytes of large heap blocks are live, and the most that ever were.
//
//   cc -O2 -shared -fPIC heap_peak.c -o heap_peak.so;  LD_PRELOAD=./heap_peak.so python ...
//
// Every caller is counted, not only torch's allocator: a backend's temporaries and an arena are memory too.
// Blocks below SMALLEST bytes are not: Python makes millions of them, and all together they are little. Sizes
// are what the C library set aside (malloc_usable_size). glibc only: its __libc_ names are called instead of
// dlsym(RTLD_NEXT), which allocates itself.
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

enum { SMALLEST = 1024 };

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

static _Atomic long long live_bytes, peak_bytes;

static long long counted(void *block) {
  const size_t size = block == NULL ? 0 : malloc_usable_size(block);
  return size < SMALLEST ? 0 : (long long)size;
}

static void *begin(void *block) {
  const long long size = counted(block);
  if (size == 0) return block;
  const long long now = atomic_fetch_add(&live_bytes, size) + size;
  long long peak = atomic_load(&peak_bytes);
  while (now > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, now)) continue;
  return block;
}

// What the benchmarks call.
long long heap_peak_live(void) { return atomic_load(&live_bytes); }
long long heap_peak_bytes(void) { return atomic_load(&peak_bytes); }
void heap_peak_restart(void) { atomic_store(&peak_bytes, atomic_load(&live_bytes)); }

// What everybody calls.
void *malloc(size_t size) { return begin(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { return begin(__libc_calloc(count, size)); }
void *memalign(size_t alignment, size_t size) { return begin(__libc_memalign(alignment, size)); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **block, size_t alignment, size_t size) {
  void *made = memalign(alignment, size);
  if (made == NULL) return ENOMEM;
  *block = made;
  return 0;
}

void free(void *block) {
  atomic_fetch_sub(&live_bytes, counted(block));
  __libc_free(block);
}

void *realloc(void *block, size_t size) {
  const long long before = counted(block);
  void *moved = __libc_realloc(block, size);
  if (moved == NULL && size != 0) return NULL;  // the old block lives on
  atomic_fetch_sub(&live_bytes, before);
  return begin(moved);
}
