// How much does a core get done?  Works for the seconds given; prints the work done a millisecond.
// The work keeps the units of a core busy: it slows down when another thread shares them.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec + at.tv_nsec * 1e-9;
}

static uint32_t table[1024];
static volatile uint32_t kept;

static void work(void) {
  uint32_t a = kept, b = a + 1, c = a + 2, d = a + 3;
  for (int round = 0; round < 2000; round++) {
    a = a * 1664525u + table[b & 1023];
    b = b * 22695477u + table[c & 1023];
    c = (c << 5 ^ c >> 3) + table[d & 1023];
    d = (d << 7 ^ d >> 2) + table[a & 1023];
  }
  kept = a + b + c + d;
}

int main(int count, char** given) {
  for (uint32_t place = 0; place < 1024; place++) table[place] = place * 2654435761u;
  work();
  double seconds = count > 1 ? atof(given[1]) : 0.2, begin = now(), lasted;
  long done = 0;
  while ((lasted = now() - begin) < seconds) {
    work();
    done++;
  }
  printf("%.3f\n", done / (lasted * 1e3));
  return 0;
}
