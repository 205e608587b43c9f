// How much does a core get done?  Works for the seconds given; prints the work done a millisecond.
// The work takes half as long again, or twice as long, when another thread shares the core's units,
// as does interpreted code; a chain of dependent steps would hardly show it.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec + at.tv_nsec * 1e-9;
}

static volatile uint64_t kept;

// Eight sums that do not wait for one another: as many instructions at once as the core can take.
static void work(void) {
  uint64_t a = kept, b = a + 1, c = a + 2, d = a + 3, e = a + 4, f = a + 5, g = a + 6, h = a + 7;
  for (uint64_t round = 0; round < 4000; round++) {
    a += round, b ^= round, c -= round, d += 7, e ^= 9, f += 11, g -= 5, h ^= 3;
    __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f), "+r"(g), "+r"(h));
  }
  kept = a + b + c + d + e + f + g + h;
}

int main(int count, char** given) {
  double seconds = count > 1 ? atof(given[1]) : 0.2, begin = now(), lasted;
  long done = 0;
  while ((lasted = now() - begin) < seconds) {
    work();
    done++;
  }
  printf("%.3f\n", done / (lasted * 1e3));
  return 0;
}
