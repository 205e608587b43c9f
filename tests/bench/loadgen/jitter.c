// How much of a core do others take?  Spins for the seconds given and sums up the gaps above 0.1 ms.
// Prints: gaps, longest gap in ms, percent lost.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec + at.tv_nsec * 1e-9;
}

int main(int count, char** given) {
  double begin = now(), end = begin + (count > 1 ? atof(given[1]) : 0.2);
  double before = begin, at, lost = 0, longest = 0;
  long gaps = 0;
  while ((at = now()) < end) {
    double gap = at - before;
    if (gap > 1e-4) {
      gaps++;
      lost += gap;
      if (gap > longest) longest = gap;
    }
    before = at;
  }
  printf("%ld %.3f %.2f\n", gaps, longest * 1e3, lost / (at - begin) * 100);
  return 0;
}
