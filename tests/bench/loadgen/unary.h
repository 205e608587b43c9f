// Unary shapes: echo, the request's lifecycle, batches, pulling from a backlog.
#pragma once

#include "run.h"

namespace bench {

// Something that does one round of calls after the other.
class Caller {
 public:
  Caller(Run* run, int64_t index) : run_(run), to_(run->At(index)), index_(index) {}
  virtual ~Caller() = default;

  // Begins a round meant to begin at `intended`; `done` is called when it has ended.
  virtual void Round(Nanos intended) = 0;
  std::function<void()> done;

 protected:
  Run* run_;
  const Connection& to_;
  int64_t index_;
  std::string WorkerId() const { return "worker-" + std::to_string(index_); }
};

class EchoCaller : public Caller {
 public:
  using Caller::Caller;
  void Round(Nanos intended) override {
    request_.Clear();
    run_->FillRequest(&request_);
    call_.Begin(
        run_, [&](auto* context) { return to_.echo->AsyncEcho(context, request_, &run_->queue); },
        [this, intended](auto&) {
          run_->Record("rpc", intended);
          done();
        },
        [this](auto&) { done(); });
  }

 private:
  v1::EnqueueRequest request_;
  Call<v1::EnqueueRequest> call_;
};

// Enqueue, NextDispatch, Complete; or Enqueue and a NextDispatch that carries the completion of the
// round before (`--piggyback 1`).  Every RPC counts as one in the series "rpc".
class LifecycleCaller : public Caller {
 public:
  LifecycleCaller(Run* run, int64_t index)
      : Caller(run, index), piggyback_(run->options.Whole("piggyback", 0) != 0) {
    next_.set_worker_id(WorkerId());
    next_.add_pools(run->pool);
    next_.set_max_dispatches(1);
  }

  void Round(Nanos intended) override {
    intended_ = intended;
    request_.Clear();
    run_->FillRequest(&request_);
    enqueued_.Begin(
        run_,
        [&](auto* context) { return to_.scheduler->AsyncEnqueue(context, request_, &run_->queue); },
        [this](auto&) {
          run_->Record("enqueue", intended_);
          run_->Record("rpc", intended_);
          Take();
        },
        [this](auto&) { done(); });
  }

 private:
  void Take() {
    Nanos began = Now();
    given_.Begin(
        run_,
        [&](auto* context) {
          return to_.scheduler->AsyncNextDispatch(context, next_, &run_->queue);
        },
        [this, began](const v1::NextDispatchResponse& answer) {
          run_->Record("next_dispatch", began);
          run_->Record("rpc", began);
          next_.clear_completions();
          if (answer.dispatches().empty()) {
            run_->report.Count("empty");
            return done();
          }
          const std::string& lease = answer.dispatches(0).lease_id();
          if (piggyback_ && !run_->stopping) {
            run_->FillCompletion(next_.add_completions(), lease);
            run_->Record("lifecycle", intended_);
            return done();
          }
          Finish(lease);
        },
        [this](auto&) { done(); });
  }

  void Finish(const std::string& lease) {
    complete_.Clear();
    run_->FillCompletion(&complete_, lease);
    Nanos began = Now();
    completed_.Begin(
        run_,
        [&](auto* context) {
          return to_.scheduler->AsyncComplete(context, complete_, &run_->queue);
        },
        [this, began](auto&) {
          run_->Record("complete", began);
          run_->Record("rpc", began);
          run_->Record("lifecycle", intended_);
          done();
        },
        [this](auto&) { done(); });
  }

  bool piggyback_;
  Nanos intended_ = 0;
  v1::EnqueueRequest request_;
  v1::NextDispatchRequest next_;
  v1::CompleteRequest complete_;
  Call<v1::EnqueueResponse> enqueued_;
  Call<v1::NextDispatchResponse> given_;
  Call<v1::CompleteResponse> completed_;
};

// BatchEnqueue of `--batch` requests (unless `--enqueue 0`), then a NextDispatch for as many that
// carries the completions of the round before.
class BatchCaller : public Caller {
 public:
  BatchCaller(Run* run, int64_t index)
      : Caller(run, index),
        batch_(run->options.Whole("batch", 10)),
        enqueues_(run->options.Whole("enqueue", 1) != 0) {
    next_.set_worker_id(WorkerId());
    next_.add_pools(run->pool);
    next_.set_max_dispatches(batch_);
  }

  void Round(Nanos intended) override {
    intended_ = intended;
    if (!enqueues_) return Take();
    requests_.Clear();
    for (int64_t item = 0; item < batch_; item++) run_->FillRequest(requests_.add_requests());
    enqueued_.Begin(
        run_,
        [&](auto* context) {
          return to_.scheduler->AsyncBatchEnqueue(context, requests_, &run_->queue);
        },
        [this](const v1::BatchEnqueueResponse& answer) {
          for (auto& result : answer.results()) {
            if (result.has_error()) run_->report.Error(result.error().reason());
          }
          run_->Record("batch_enqueue", intended_, batch_);
          Take();
        },
        [this](auto&) { done(); });
  }

 private:
  void Take() {
    Nanos began = Now();
    given_.Begin(
        run_,
        [&](auto* context) {
          return to_.scheduler->AsyncNextDispatch(context, next_, &run_->queue);
        },
        [this, began](const v1::NextDispatchResponse& answer) {
          run_->Record("next_dispatch", began, answer.dispatches_size());
          if (answer.dispatches().empty()) run_->report.Count("empty");
          next_.clear_completions();
          for (auto& dispatch : answer.dispatches()) {
            run_->FillCompletion(next_.add_completions(), dispatch.lease_id());
          }
          if (run_->stopping) return Finish();
          done();
        },
        [this](auto&) { done(); });
  }

  // The last completions have no later call to travel with.
  void Finish() {
    if (next_.completions().empty()) return done();
    last_.mutable_completions()->CopyFrom(next_.completions());
    completed_.Begin(
        run_,
        [&](auto* context) {
          return to_.scheduler->AsyncBatchComplete(context, last_, &run_->queue);
        },
        [this](auto&) { done(); }, [this](auto&) { done(); });
  }

  int64_t batch_;
  bool enqueues_;
  Nanos intended_ = 0;
  v1::BatchEnqueueRequest requests_;
  v1::NextDispatchRequest next_;
  v1::BatchCompleteRequest last_;
  Call<v1::BatchEnqueueResponse> enqueued_;
  Call<v1::NextDispatchResponse> given_;
  Call<v1::BatchCompleteResponse> completed_;
};

// A cheap read that decides nothing: how long the service keeps anybody waiting.
class ProbeCaller : public Caller {
 public:
  ProbeCaller(Run* run, int64_t index) : Caller(run, index) { request_.set_page_size(1); }
  void Round(Nanos intended) override {
    call_.Begin(
        run_,
        [&](auto* context) {
          return to_.scheduler->AsyncListWorkers(context, request_, &run_->queue);
        },
        [this, intended](auto&) {
          run_->Record("rpc", intended);
          done();
        },
        [this](auto&) { done(); });
  }

 private:
  v1::ListWorkersRequest request_;
  Call<v1::ListWorkersResponse> call_;
};

// Closed loop: each caller begins the next round when one has ended.  Open loop (`--rate`): rounds
// begin when they are due; those that find no free caller wait, and their time counts.
template <class Kind>
void RunCallers(Run* run) {
  double rate = run->options.Number("rate", 0);
  int64_t count = run->options.Whole("callers", rate > 0 ? 1024 : 64);
  std::vector<std::unique_ptr<Kind>> callers;
  std::vector<Caller*> idle;
  std::deque<Nanos> due;
  for (int64_t index = 0; index < count; index++) {
    auto caller = std::make_unique<Kind>(run, index);
    Caller* self = caller.get();
    if (rate > 0) {
      caller->done = [&idle, &due, self, run] {
        if (due.empty() || run->stopping) return idle.push_back(self);
        Nanos intended = due.front();
        due.pop_front();
        self->Round(intended);
      };
      idle.push_back(self);
    } else {
      caller->done = [self, run] {
        if (!run->stopping) self->Round(Now());
      };
    }
    callers.push_back(std::move(caller));
  }
  if (rate <= 0) {
    std::lock_guard<std::mutex> lock(run->mutex);
    for (auto& caller : callers) caller->Round(Now());
  }
  std::unique_ptr<Pacer> pacer;
  if (rate > 0) {
    pacer = std::make_unique<Pacer>(run, rate, [&](Nanos intended) {
      if (idle.empty()) return due.push_back(intended);
      Caller* caller = idle.back();
      idle.pop_back();
      caller->Round(intended);
    });
  }
  run->Loop();
  pacer.reset();
  run->report.Count("unserved", due.size());
}

}  // namespace bench
