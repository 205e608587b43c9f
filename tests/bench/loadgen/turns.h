// Waiting for a turn (Acquire), filling a backlog, holding streams open, a slow reader of the log.
#pragma once

#include "sessions.h"
#include "unary.h"

namespace bench {

// Acquire until Granted, and in a gate the Complete that frees its place.  The series "granted" runs
// from the intended time to the message; "queued" to the first message of the stream.
class AcquireCaller : public Caller, public Event {
 public:
  AcquireCaller(Run* run, int64_t index)
      : Caller(run, index), gate_(run->options.Whole("gate", 1) != 0) {}

  void Round(Nanos intended) override {
    intended_ = intended;
    state_ = State::kOpening;
    queued_ = granted_ = false;
    request_.Clear();
    run_->FillRequest(request_.mutable_request());
    stream_.reset();  // it lives in memory of the call that the context holds
    context_ = std::make_unique<grpc::ClientContext>();
    run_->pending++;
    stream_ = to_.scheduler->AsyncAcquire(context_.get(), request_, &run_->queue, Tag());
  }

  void Happened(bool ok) override {
    switch (state_) {
      case State::kOpening:
        state_ = State::kReading;
        return ok ? Read() : Finish();
      case State::kReading:
        return ok ? Take() : Finish();
      case State::kFinishing:
        if (!granted_) run_->Failed(status_);
        if (!granted_ || !gate_) return done();
        return Complete();
    }
  }

 private:
  enum class State { kOpening, kReading, kFinishing };

  // What the queue hands back is an Event, not the Caller before it.
  void* Tag() { return static_cast<Event*>(this); }

  void Read() {
    run_->pending++;
    stream_->Read(&answer_, Tag());
  }

  void Take() {
    if (answer_.has_queued() && !queued_) {
      queued_ = true;
      run_->Record("queued", intended_);
    }
    if (answer_.has_granted() && !granted_) {
      granted_ = true;
      lease_ = answer_.granted().lease_id();
      run_->Record("granted", intended_);
    }
    Read();
  }

  void Finish() {
    state_ = State::kFinishing;
    run_->pending++;
    stream_->Finish(&status_, Tag());
  }

  void Complete() {
    complete_.Clear();
    run_->FillCompletion(&complete_, lease_);
    completed_.Begin(
        run_,
        [&](auto* context) {
          return to_.scheduler->AsyncComplete(context, complete_, &run_->queue);
        },
        [this](auto&) {
          run_->Record("released", intended_);
          done();
        },
        [this](auto&) { done(); });
  }

  bool gate_;
  State state_ = State::kOpening;
  bool queued_ = false, granted_ = false;
  Nanos intended_ = 0;
  std::string lease_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientAsyncReader<v1::AcquireResponse>> stream_;
  v1::AcquireRequest request_;
  v1::AcquireResponse answer_;
  v1::CompleteRequest complete_;
  grpc::Status status_;
  Call<v1::CompleteResponse> completed_;
};

// Acquire in a pool that workers pull from: one worker session beside it takes and completes.
inline void RunAcquire(Run* run) {
  Traffic traffic;
  std::unique_ptr<WorkerStream> worker;
  if (run->options.Whole("gate", 1) == 0) {
    std::lock_guard<std::mutex> lock(run->mutex);
    worker = std::make_unique<WorkerStream>(run, &traffic, 0);
    worker->Open([&](auto* context, auto* queue, void* tag) {
      return run->At(1).scheduler->AsyncWorkerSession(context, queue, tag);
    });
    run->tick = [&] {
      if (run->stopping && run->pending <= 1) worker->EndWhenFinished();
    };
  }
  RunCallers<AcquireCaller>(run);
}

// Adds `--count` requests, `--callers` calls of a thousand at a time, and returns.
inline void RunFill(Run* run) {
  int64_t left = run->options.Whole("count", 1000);
  struct Filler {
    v1::BatchEnqueueRequest batch;
    Call<v1::BatchEnqueueResponse> call;
  };
  std::vector<std::unique_ptr<Filler>> fillers;
  std::function<void(Filler*, size_t)> fill = [&](Filler* filler, size_t index) {
    int64_t count = std::min<int64_t>(left, 1000);
    if (count == 0) return;
    left -= count;
    filler->batch.Clear();
    for (int64_t item = 0; item < count; item++) run->FillRequest(filler->batch.add_requests());
    filler->call.Begin(
        run,
        [&](auto* context) {
          return run->At(index).scheduler->AsyncBatchEnqueue(context, filler->batch, &run->queue);
        },
        [&fill, filler, index, run](const v1::BatchEnqueueResponse& answer) {
          for (auto& result : answer.results()) {
            if (result.has_error()) {
              run->report.Error(result.error().reason());
            } else {
              run->report.Count("added");
            }
          }
          fill(filler, index);
        });
  };
  for (int64_t index = 0; index < run->options.Whole("callers", 4); index++) {
    fillers.push_back(std::make_unique<Filler>());
    fill(fillers.back().get(), index);
  }
  void* tag;
  bool ok;
  while (run->pending > 0 && run->queue.Next(&tag, &ok)) {
    run->pending--;
    static_cast<Event*>(tag)->Happened(ok);
  }
}

// Takes `--count` requests and holds their leases (`--complete 1`: completes them).
inline void RunTake(Run* run) {
  int64_t left = run->options.Whole("count", 1000);
  bool complete = run->options.Whole("complete", 0) != 0;
  v1::NextDispatchRequest next;
  next.set_worker_id(run->options.Text("worker", "holder"));
  next.add_pools(run->pool);
  next.set_hand_over_disabled(true);
  next.mutable_lease_duration()->set_seconds(86'000);
  auto& scheduler = *run->At(0).scheduler;
  while (left > 0) {
    grpc::ClientContext context;
    v1::NextDispatchResponse answer;
    next.set_max_dispatches(std::min<int64_t>(left, 1000));
    grpc::Status status = scheduler.NextDispatch(&context, next, &answer);
    if (!status.ok()) return run->Failed(status);
    if (answer.dispatches().empty()) return run->report.Error("EMPTY");
    left -= answer.dispatches_size();
    run->report.Count("taken", answer.dispatches_size());
    if (!complete) continue;
    grpc::ClientContext second;
    v1::BatchCompleteRequest done;
    v1::BatchCompleteResponse results;
    for (auto& dispatch : answer.dispatches()) {
      run->FillCompletion(done.add_completions(), dispatch.lease_id());
    }
    status = scheduler.BatchComplete(&second, done, &results);
    if (!status.ok()) return run->Failed(status);
  }
}

// Opens `--streams` worker sessions without credits, says "held" and waits until stdin ends.
inline void RunHold(Run* run) {
  Traffic traffic;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<
      grpc::ClientReaderWriter<v1::WorkerSessionRequest, v1::WorkerSessionResponse>>>
      streams;
  for (int64_t index = 0; index < run->options.Whole("streams", 100); index++) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    auto stream = run->At(index).scheduler->WorkerSession(contexts.back().get());
    v1::WorkerSessionRequest first;
    first.mutable_register_()->set_worker_id("held-" + std::to_string(index));
    first.mutable_register_()->add_pools(run->pool);
    v1::WorkerSessionResponse answer;
    if (!stream->Write(first) || !stream->Read(&answer)) {
      run->report.Error("stream refused: " + Run::Plain(stream->Finish().error_message()));
      return;
    }
    streams.push_back(std::move(stream));
  }
  run->report.Count("held", streams.size());
  printf("held\n");
  fflush(stdout);
  while (getchar() != EOF) {
  }
}

// Watches the log from `--after` on (-1: only what is new) and reads `--per-second` decisions of it a second.
inline void RunWatch(Run* run) {
  grpc::ClientContext context;
  v1::WatchDecisionsRequest request;
  int64_t after = run->options.Whole("after", 0);
  if (after >= 0) request.set_after_sequence(after);
  auto stream = run->At(0).audit->WatchDecisions(&context, request);
  double per_second = run->options.Number("per-second", 1000);
  Nanos began = Now();
  uint64_t read = 0;
  v1::WatchDecisionsResponse answer;
  while (!run->report.Over(Now()) && stream->Read(&answer)) {
    read += answer.decisions_size();
    Nanos next = began + static_cast<Nanos>(read / per_second * kSecond);
    next = std::min(next, run->report.end());
    timespec until{next / kSecond, next % kSecond};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
  }
  run->report.Count("read", read);
  run->report.Count("behind", answer.head().newest_sequence() - answer.scanned_sequence());
  context.TryCancel();
}

}  // namespace bench
