// What is measured, and the window it is measured in.
//
// Latencies go into log-linear histograms (relative error below 1 %), so a run of any length needs
// the same memory and no sorting.  Everything counts by the time it *ended* inside the window.
#pragma once

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace bench {

using Nanos = int64_t;
constexpr Nanos kSecond = 1'000'000'000;

inline Nanos ReadClock(clockid_t clock) {
  timespec at;
  clock_gettime(clock, &at);
  return at.tv_sec * kSecond + at.tv_nsec;
}

inline Nanos Now() { return ReadClock(CLOCK_MONOTONIC); }

// Counts of latencies: 128 equal steps in every power of two.
class Histogram {
 public:
  void Record(Nanos value) {
    value = std::max<Nanos>(value, 0);
    counts_[Bucket(value)]++;
    count_++;
    sum_ += value;
    max_ = std::max(max_, value);
  }

  // Nearest rank; the upper edge of the bucket, at most the largest value seen.
  Nanos Quantile(double level) const {
    if (count_ == 0) return 0;
    uint64_t rank = std::min<uint64_t>(count_, static_cast<uint64_t>(level * count_) + 1);
    uint64_t seen = 0;
    for (size_t bucket = 0; bucket < counts_.size(); bucket++) {
      seen += counts_[bucket];
      if (seen >= rank) return std::min(UpperEdge(bucket), max_);
    }
    return max_;
  }

  uint64_t count() const { return count_; }
  Nanos max() const { return max_; }
  double mean() const { return count_ ? static_cast<double>(sum_) / count_ : 0; }

 private:
  static constexpr int kStepBits = 7;
  static constexpr uint64_t kSteps = 1 << kStepBits;

  static size_t Bucket(uint64_t value) {
    if (value < kSteps) return value;
    int shift = 63 - __builtin_clzll(value) - kStepBits;
    return (static_cast<size_t>(shift) + 1) * kSteps + ((value >> shift) - kSteps);
  }

  static Nanos UpperEdge(size_t bucket) {
    if (bucket < kSteps) return bucket;
    size_t shift = bucket / kSteps - 1;
    return static_cast<Nanos>(((bucket % kSteps + kSteps + 1) << shift) - 1);
  }

  std::vector<uint64_t> counts_ = std::vector<uint64_t>(58 * kSteps, 0);
  uint64_t count_ = 0;
  __int128 sum_ = 0;
  Nanos max_ = 0;
};

// One kind of operation.
struct Series {
  uint64_t calls = 0;  // answers received
  uint64_t items = 0;  // what they carried
  Histogram latency;
};

// CPU time of another process, threads that have ended included; 0 without one.
inline Nanos ProcessCpu(pid_t pid) {
  clockid_t clock;
  if (pid <= 0 || clock_getcpuclockid(pid, &clock) != 0) return 0;
  return ReadClock(clock);
}

inline double ResidentMegabytes(pid_t pid) {
  if (pid <= 0) return 0;
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  double total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE) / 1e6;
}

// Everything a run finds out.
class Report {
 public:
  Report(Nanos start, double seconds, pid_t server)
      : start_(start), end_(start + static_cast<Nanos>(seconds * kSecond)), server_(server) {}

  bool Inside(Nanos at) const { return at >= start_ && at < end_; }
  bool Over(Nanos at) const { return at >= end_; }
  Nanos start() const { return start_; }
  Nanos end() const { return end_; }

  // Takes an answer received `at`, to what was meant to be sent at `intended`.
  void Record(const char* name, Nanos intended, Nanos at, uint64_t items) {
    if (!Inside(at)) return;
    Series& series = series_[name];
    series.calls++;
    series.items += items;
    series.latency.Record(at - intended);
  }

  void Count(const std::string& name, uint64_t by = 1) { counts_[name] += by; }
  void Error(const std::string& name) { errors_[name]++; }

  // Reads the CPU clocks when the window begins and when it ends; to be called often.
  void Watch(Nanos at) {
    if (!begun_ && at >= start_) {
      begun_ = true;
      began_at_ = at;
      server_cpu_ = -ProcessCpu(server_);
      client_cpu_ = -ReadClock(CLOCK_PROCESS_CPUTIME_ID);
    }
    if (begun_ && !ended_ && at >= end_) {
      ended_ = true;
      ended_at_ = at;
      server_cpu_ += ProcessCpu(server_);
      client_cpu_ += ReadClock(CLOCK_PROCESS_CPUTIME_ID);
      resident_megabytes_ = ResidentMegabytes(server_);
    }
  }

  // Prints the run as one line of JSON.
  void Print() const {
    double seconds = static_cast<double>(end_ - start_) / kSecond;
    double watched = static_cast<double>(ended_at_ - began_at_) / kSecond;
    printf("{\"seconds\": %.3f, \"series\": {", seconds);
    const char* comma = "";
    for (const auto& [name, series] : series_) {
      const Histogram& latency = series.latency;
      printf(
          "%s\"%s\": {\"calls\": %lu, \"items\": %lu, \"calls_per_s\": %.1f, "
          "\"items_per_s\": %.1f, \"mean_us\": %.1f, \"p50_us\": %.1f, \"p90_us\": %.1f, "
          "\"p95_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f}",
          comma, name.c_str(), series.calls, series.items, series.calls / seconds,
          series.items / seconds, latency.mean() / 1e3, latency.Quantile(.5) / 1e3,
          latency.Quantile(.9) / 1e3, latency.Quantile(.95) / 1e3, latency.Quantile(.99) / 1e3,
          latency.Quantile(.999) / 1e3, latency.max() / 1e3);
      comma = ", ";
    }
    printf("}, ");
    PrintMap("errors", errors_);
    PrintMap("counts", counts_);
    printf("\"server_cpu\": %.4f, \"client_cpu\": %.4f, \"server_rss_mb\": %.1f}\n",
           watched > 0 ? server_cpu_ / 1e9 / watched : 0,
           watched > 0 ? client_cpu_ / 1e9 / watched : 0, resident_megabytes_);
    fflush(stdout);
  }

 private:
  static void PrintMap(const char* name, const std::map<std::string, uint64_t>& map) {
    printf("\"%s\": {", name);
    const char* comma = "";
    for (const auto& [key, value] : map) {
      printf("%s\"%s\": %lu", comma, key.c_str(), value);
      comma = ", ";
    }
    printf("}, ");
  }

  Nanos start_, end_;
  pid_t server_;
  std::map<std::string, Series> series_;
  std::map<std::string, uint64_t> counts_, errors_;
  bool begun_ = false, ended_ = false;
  Nanos began_at_ = 0, ended_at_ = 0, server_cpu_ = 0, client_cpu_ = 0;
  double resident_megabytes_ = 0;
};

}  // namespace bench
