// Bidirectional sessions: gateways that enqueue, workers that take and complete.
#pragma once

#include <unordered_map>

#include "run.h"

namespace bench {

// One bidirectional stream: a read always under way, one write at a time.
template <class Out, class In>
class Session {
 public:
  using Stream = std::unique_ptr<grpc::ClientAsyncReaderWriter<Out, In>>;

  explicit Session(Run* run) : run_(run) {}
  virtual ~Session() = default;

  // Opens the stream; `start(context, queue, tag)` is the stub's method.
  template <class Start>
  void Open(Start start) {
    run_->pending++;
    stream_ = start(&context_, &run_->queue, &opened_);
  }

  // Ends the stream once nothing is owed on it; called on every turn when the run is stopping.
  void EndWhenFinished() {
    if (ending_ || !Finished()) return;
    ending_ = true;
    context_.TryCancel();
  }

 protected:
  virtual bool Finished() { return true; }  // nothing is owed
  virtual void Opened() = 0;                // may write now
  virtual void Received(const In& in) = 0;  // one message
  virtual void Writable() = 0;              // the write under way is done
  bool writing() const { return writing_ || !open_; }

  void Write(const Out& out) {
    writing_ = true;
    run_->pending++;
    stream_->Write(out, &written_);
  }

  Run* run_;

 private:
  struct Tag : Event {
    Tag(Session* session, void (Session::*then)(bool)) : session(session), then(then) {}
    void Happened(bool ok) override { (session->*then)(ok); }
    Session* session;
    void (Session::*then)(bool);
  };

  void OnOpened(bool ok) {
    if (!ok) return Lost();
    open_ = true;
    Read();
    Opened();
  }
  void OnRead(bool ok) {
    if (!ok) return Lost();
    Received(in_);
    Read();
  }
  void OnWritten(bool ok) {
    writing_ = false;
    if (!ok) return;
    Writable();
  }
  void Read() {
    run_->pending++;
    stream_->Read(&in_, &read_);
  }
  void Lost() {
    open_ = false;
    if (ending_ || lost_) return;
    lost_ = true;
    run_->pending++;
    stream_->Finish(&status_, &finished_);
  }
  void OnFinished(bool) {
    if (!ending_) run_->report.Error("stream lost: " + Run::Plain(status_.error_message()));
  }

  grpc::ClientContext context_;
  Stream stream_;
  In in_;
  grpc::Status status_;
  bool open_ = false, writing_ = false, lost_ = false, ending_ = false;
  Tag opened_{this, &Session::OnOpened}, read_{this, &Session::OnRead},
      written_{this, &Session::OnWritten}, finished_{this, &Session::OnFinished};
};

// Requests between the gateways and the workers of this run.
struct Traffic {
  bool fed = false;                                // whether there are gateways
  int64_t in_system = 0;                           // enqueued here, less what was completed
  int64_t limit = 0;                               // closed loop: gateways keep it at this
  std::deque<Nanos> due;                           // open loop: arrivals not sent yet
  std::unordered_map<std::string, Nanos> started;  // by request id: intended time
};

class GatewayStream : public Session<v1::GatewaySessionRequest, v1::GatewaySessionResponse> {
 public:
  GatewayStream(Run* run, Traffic* traffic, bool open_loop)
      : Session(run),
        traffic_(traffic),
        open_loop_(open_loop),
        batch_(run->options.Whole("batch", 10)),
        window_(run->options.Whole("gateway-window", 4)),
        brief_(run->options.Whole("brief", 1) != 0) {}

  // Sends what is due, if a message may be sent.
  void Pump() {
    if (writing() || run_->stopping || unanswered_.size() >= static_cast<size_t>(window_)) return;
    Nanos now = Now();
    int64_t count = open_loop_ ? static_cast<int64_t>(traffic_->due.size())
                               : traffic_->limit - traffic_->in_system;
    // An open loop sends whatever is due at once; a closed one fills its messages.
    count = std::min(count, open_loop_ ? int64_t{1000} : batch_);
    if (count <= 0 || (!open_loop_ && count < batch_)) return;
    out_.Clear();
    out_.set_brief_results(brief_);
    for (int64_t item = 0; item < count; item++) {
      auto* request = out_.add_enqueues()->mutable_request();
      run_->FillRequest(request);
      Nanos intended = now;
      if (open_loop_) {
        intended = traffic_->due.front();
        traffic_->due.pop_front();
      }
      traffic_->started[request->request_id()] = intended;
      intended_.push_back(intended);
    }
    traffic_->in_system += count;
    unanswered_.push_back(count);
    Write(out_);
  }

 protected:
  void Opened() override { Pump(); }
  void Writable() override { Pump(); }
  bool Finished() override { return unanswered_.empty() && !writing(); }
  void Received(const v1::GatewaySessionResponse& in) override {
    for (auto& result : in.enqueue_results()) {
      run_->Record("enqueue", intended_.front());
      intended_.pop_front();
      if (result.has_error()) {
        run_->report.Error(result.error().reason());
        traffic_->in_system--;
      }
      if (--unanswered_.front() == 0) unanswered_.pop_front();
    }
    Pump();
  }

 private:
  Traffic* traffic_;
  bool open_loop_;
  int64_t batch_, window_;
  bool brief_;
  std::deque<int64_t> unanswered_;  // results still owed, by message
  std::deque<Nanos> intended_;
  v1::GatewaySessionRequest out_;
};

class WorkerStream : public Session<v1::WorkerSessionRequest, v1::WorkerSessionResponse> {
 public:
  WorkerStream(Run* run, Traffic* traffic, int64_t index)
      : Session(run),
        traffic_(traffic),
        index_(index),
        credits_(run->options.Whole("batch", 10) * run->options.Whole("window", 1)) {}

  std::function<void()> completed;  // room for more in the system

 protected:
  void Opened() override {
    auto* registration = out_.mutable_register_();
    registration->set_worker_id("worker-" + std::to_string(index_));
    registration->add_pools(run_->pool);
    out_.set_brief_results(run_->options.Whole("brief", 1) != 0);
    out_.set_credits(credits_);
    Write(out_);
  }

  void Writable() override { Pump(); }

  // With a backlog every credit is used; with gateways the last request may be another worker's.
  bool Finished() override {
    return held_.empty() && sent_.empty() && (credits_ == 0 || traffic_->in_system <= 0);
  }

  void Received(const v1::WorkerSessionResponse& in) override {
    Nanos now = Now();
    credits_ -= in.dispatches_size();
    if (!in.dispatches().empty()) {
      run_->report.Record("dispatch_message", now, now, in.dispatches_size());
    }
    for (auto& dispatch : in.dispatches()) {
      auto found = traffic_->started.find(dispatch.request_id());
      run_->report.Record("dispatch", found == traffic_->started.end() ? now : found->second, now,
                          1);
      held_.push_back({dispatch.lease_id(), dispatch.request_id()});
    }
    for (auto& result : in.completion_results()) {
      if (result.has_error()) run_->report.Error(result.error().reason());
      const std::string& id = sent_.front().second;
      auto found = traffic_->started.find(id);
      Nanos intended = now;
      if (found != traffic_->started.end()) {
        intended = found->second;
        traffic_->started.erase(found);
      }
      // With a backlog older requests go first: each that ends makes room for a new one.
      if (traffic_->fed) traffic_->in_system--;
      run_->report.Record("lifecycle", intended, now, 1);
      sent_.pop_front();
    }
    Pump();
    if (!in.completion_results().empty() && completed) completed();
  }

 private:
  void Pump() {
    if (writing() || held_.empty()) return;
    out_.Clear();
    int64_t count = std::min<int64_t>(static_cast<int64_t>(held_.size()), 1000);
    for (int64_t item = 0; item < count; item++) {
      run_->FillCompletion(out_.add_completions(), held_.front().first);
      sent_.push_back(std::move(held_.front()));
      held_.pop_front();
    }
    // A run that stops still takes what its gateways sent.
    bool more = !run_->stopping || traffic_->in_system > count;
    out_.set_credits(more ? count : 0);
    credits_ += more ? count : 0;
    Write(out_);
  }

  Traffic* traffic_;
  int64_t index_, credits_;  // credits given and not used yet
  std::deque<std::pair<std::string, std::string>> held_, sent_;  // lease id, request id
  v1::WorkerSessionRequest out_;
};

// `--gateways` streams feed, `--workers` streams take and complete.  With a backlog and no gateway
// the workers alone are measured.  `--rate` makes it an open loop.
inline void RunSessions(Run* run) {
  Traffic traffic;
  double rate = run->options.Number("rate", 0);
  traffic.limit = run->options.Whole("in-system", 1000);
  traffic.fed = run->options.Whole("gateways", 4) > 0;
  std::vector<std::unique_ptr<GatewayStream>> gateways;
  std::vector<std::unique_ptr<WorkerStream>> workers;
  size_t next_gateway = 0;
  auto feed = [&] {
    for (size_t tried = 0; tried < gateways.size(); tried++) {
      gateways[next_gateway++ % gateways.size()]->Pump();
    }
  };
  {
    std::lock_guard<std::mutex> lock(run->mutex);
    for (int64_t index = 0; index < run->options.Whole("workers", 16); index++) {
      workers.push_back(std::make_unique<WorkerStream>(run, &traffic, index));
      if (rate <= 0) workers.back()->completed = feed;
      workers.back()->Open([&](auto* context, auto* queue, void* tag) {
        return run->At(index).scheduler->AsyncWorkerSession(context, queue, tag);
      });
    }
    for (int64_t index = 0; index < run->options.Whole("gateways", 4); index++) {
      gateways.push_back(std::make_unique<GatewayStream>(run, &traffic, rate > 0));
      gateways.back()->Open([&](auto* context, auto* queue, void* tag) {
        return run->At(index).scheduler->AsyncGatewaySession(context, queue, tag);
      });
    }
  }
  std::unique_ptr<Pacer> pacer;
  if (rate > 0) {
    pacer = std::make_unique<Pacer>(run, rate, [&](Nanos intended) {
      traffic.due.push_back(intended);
      feed();
    });
  }
  run->tick = [&] {
    if (!run->stopping) return;
    for (auto& gateway : gateways) gateway->EndWhenFinished();
    for (auto& worker : workers) worker->EndWhenFinished();
  };
  run->Loop();
  pacer.reset();
  run->report.Count("left_in_system", traffic.in_system);
  run->report.Count("unserved", traffic.due.size());
}

// Echo over `--streams` sessions, `--batch` requests a message, one message under way on each.
class EchoStream : public Session<v1::BatchEnqueueRequest, v1::BatchEnqueueRequest> {
 public:
  explicit EchoStream(Run* run) : Session(run) {}

 protected:
  void Opened() override { Send(); }
  void Writable() override { Send(); }
  void Received(const v1::BatchEnqueueRequest& in) override {
    run_->Record("message", sent_at_, in.requests_size());
    answered_ = true;
    Send();
  }

 private:
  // The echo may be read before the queue says that its request was written.
  void Send() {
    if (writing() || !answered_ || run_->stopping) return;
    answered_ = false;
    out_.Clear();
    for (int64_t item = 0; item < run_->options.Whole("batch", 1); item++) {
      run_->FillRequest(out_.add_requests());
    }
    sent_at_ = Now();
    Write(out_);
  }
  Nanos sent_at_ = 0;
  bool answered_ = true;
  v1::BatchEnqueueRequest out_;
};

inline void RunEchoSessions(Run* run) {
  std::vector<std::unique_ptr<EchoStream>> streams;
  for (int64_t index = 0; index < run->options.Whole("streams", 16); index++) {
    streams.push_back(std::make_unique<EchoStream>(run));
    streams.back()->Open([&](auto* context, auto* queue, void* tag) {
      return run->At(index).echo->AsyncEchoSession(context, queue, tag);
    });
  }
  run->tick = [&] {
    if (!run->stopping) return;
    for (auto& stream : streams) stream->EndWhenFinished();
  };
  run->Loop();
}

}  // namespace bench
