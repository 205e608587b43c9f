// One run: options, connections, the completion queue, the pacer, and how calls are made.
//
// One thread reads the completion queue; with an open loop a second one, the pacer, begins work at
// the intended times whatever became of earlier work.  A mutex keeps the two apart.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "echo.grpc.pb.h"
#include "fairsched/v1/audit_service.grpc.pb.h"
#include "fairsched/v1/scheduler_service.grpc.pb.h"
#include "measure.h"

namespace bench {

namespace v1 = fairsched::v1;

// `--key value` pairs; every option has a default.
class Options {
 public:
  Options(int count, char** given) {
    for (int at = 1; at + 1 < count; at += 2) {
      if (std::string(given[at]).rfind("--", 0) != 0) Fail(given[at]);
      values_[given[at] + 2] = given[at + 1];
    }
    if (count % 2 == 0) Fail(given[count - 1]);
  }

  std::string Text(const std::string& key, const std::string& otherwise) const {
    auto found = values_.find(key);
    return found == values_.end() ? otherwise : found->second;
  }
  double Number(const std::string& key, double otherwise) const {
    auto found = values_.find(key);
    return found == values_.end() ? otherwise : std::stod(found->second);
  }
  int64_t Whole(const std::string& key, int64_t otherwise) const {
    return static_cast<int64_t>(Number(key, static_cast<double>(otherwise)));
  }

 private:
  [[noreturn]] static void Fail(const char* at) {
    fprintf(stderr, "options are pairs of --key value; stopped at %s\n", at);
    exit(2);
  }
  std::map<std::string, std::string> values_;
};

// What a completion-queue tag points to.
struct Event {
  virtual void Happened(bool ok) = 0;
  virtual ~Event() = default;
};

struct Connection {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::SchedulerService::Stub> scheduler;
  std::unique_ptr<v1::AuditService::Stub> audit;
  std::unique_ptr<fairsched::bench::EchoService::Stub> echo;
};

struct Run {
  explicit Run(const Options& given)
      : options(given),
        report(Now() + static_cast<Nanos>(given.Number("warmup", 0.5) * kSecond),
               given.Number("seconds", 2), static_cast<pid_t>(given.Whole("server-pid", 0))),
        pool(given.Text("pool", "bench")),
        users(given.Whole("users", 1000)),
        long_share(given.Number("long-share", 0.15)),
        first_id(Now()) {}

  const Options& options;
  Report report;
  grpc::CompletionQueue queue;
  std::mutex mutex;
  std::vector<Connection> connections;
  int64_t pending = 0;    // events the queue still owes
  bool stopping = false;  // nothing new is begun
  std::function<void()> tick = [] {};  // called on every turn of the loop
  const std::string pool;
  const int64_t users;
  const double long_share;
  const int64_t first_id;  // makes ids of this run unlike those of others
  int64_t next_id = 0;
  std::mt19937_64 random{7};

  const Connection& At(size_t index) const { return connections[index % connections.size()]; }

  // Fills a request shaped like a gateway's: about 150 bytes on the wire.
  void FillRequest(v1::EnqueueRequest* request) {
    char text[64];
    int64_t number = next_id++;
    snprintf(text, sizeof text, "%016lx-%010ld", first_id, number);
    request->set_request_id(text);
    uint64_t drawn = random();
    snprintf(text, sizeof text, "user-%010ld-abcdefgh", static_cast<int64_t>(drawn % users));
    request->set_user_id(text);
    request->set_pool(pool);
    request->set_prompt_tokens(200 + static_cast<int64_t>((drawn >> 20) % 3000));
    request->set_max_output_tokens(1024);
    bool is_long = static_cast<double>((drawn >> 40) % 1000) < long_share * 1000;
    request->set_predicted_class(is_long ? v1::PREDICTED_CLASS_LONG : v1::PREDICTED_CLASS_SHORT);
  }

  static void FillCompletion(v1::CompleteRequest* completion, const std::string& lease) {
    completion->set_lease_id(lease);
    completion->set_outcome(v1::OUTCOME_SUCCEEDED);
    completion->mutable_usage()->set_prompt_tokens(1234);
    completion->mutable_usage()->set_output_tokens(321);
  }

  void Record(const char* name, Nanos intended, uint64_t items = 1) {
    report.Record(name, intended, Now(), items);
  }

  void Failed(const grpc::Status& status) {
    if (stopping) return;
    report.Error(std::to_string(status.error_code()) + " " + Plain(status.error_message()));
  }

  // Text fit for a JSON string.
  static std::string Plain(const std::string& text) {
    std::string plain;
    for (char letter : text.substr(0, 80)) {
      plain += letter < ' ' || letter == '"' || letter == '\\' ? ' ' : letter;
    }
    return plain;
  }

  // Reads events until the window is over and what was begun has ended (`drain` at most).
  void Loop(Nanos drain = 2 * kSecond) {
    void* tag;
    bool ok;
    for (;;) {
      auto until = std::chrono::system_clock::now() + std::chrono::milliseconds(20);
      auto next = queue.AsyncNext(&tag, &ok, until);
      std::lock_guard<std::mutex> lock(mutex);
      Nanos now = Now();
      report.Watch(now);
      if (report.Over(now)) stopping = true;
      tick();
      if (next == grpc::CompletionQueue::GOT_EVENT) {
        pending--;
        static_cast<Event*>(tag)->Happened(ok);
      }
      if (stopping && (pending == 0 || now > report.end() + drain)) return;
    }
  }
};

// One unary call after the other, with its buffers kept.
template <class Reply>
class Call : public Event {
 public:
  using Reader = std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>>;

  // Begins a call: `start(context)` sends it, `then(reply)` takes a good answer,
  // `otherwise(status)` any other.
  template <class Start>
  void Begin(Run* run, Start start, std::function<void(const Reply&)> then,
             std::function<void(const grpc::Status&)> otherwise = {}) {
    run_ = run;
    then_ = std::move(then);
    otherwise_ = std::move(otherwise);
    reader_.reset();  // it lives in memory of the call that the context holds
    context_ = std::make_unique<grpc::ClientContext>();
    reader_ = start(context_.get());
    reader_->Finish(&reply_, &status_, this);
    run_->pending++;
  }

  void Happened(bool) override {
    // Either may begin the next call on this object, so they are taken out first.
    auto then = std::move(then_);
    auto otherwise = std::move(otherwise_);
    if (status_.ok()) return then(reply_);
    run_->Failed(status_);
    if (otherwise) otherwise(status_);
  }

 private:
  Run* run_ = nullptr;
  std::unique_ptr<grpc::ClientContext> context_;
  Reader reader_;
  Reply reply_;
  grpc::Status status_;
  std::function<void(const Reply&)> then_;
  std::function<void(const grpc::Status&)> otherwise_;
};

// Calls `arrive(intended)` at exponential or equal distances, `rate` times a second.
class Pacer {
 public:
  Pacer(Run* run, double rate, std::function<void(Nanos)> arrive)
      : run_(run), rate_(rate), arrive_(std::move(arrive)), thread_([this] { Pace(); }) {}
  ~Pacer() { thread_.join(); }

 private:
  void Pace() {
    std::exponential_distribution<double> gap(rate_);
    bool even = run_->options.Text("arrivals", "poisson") == "even";
    std::mt19937_64 random(11);
    Nanos at = Now();
    while (!run_->report.Over(at)) {
      at += static_cast<Nanos>((even ? 1 / rate_ : gap(random)) * kSecond);
      timespec until{at / kSecond, at % kSecond};
      while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) {
      }
      std::lock_guard<std::mutex> lock(run_->mutex);
      if (run_->stopping) return;
      run_->Record("pacer", at);
      arrive_(at);
    }
  }

  Run* run_;
  double rate_;
  std::function<void(Nanos)> arrive_;
  std::thread thread_;
};

}  // namespace bench
