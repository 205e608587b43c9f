// Load generator of the benchmark suite: `loadgen --mode MODE --target HOST:PORT --key value …`.
//
// Prints one line of JSON.  Modes and their options are in the headers.
#include <unistd.h>

#include "sessions.h"
#include "turns.h"
#include "unary.h"

namespace bench {

bool Connect(Run* run) {
  std::string target = run->options.Text("target", "127.0.0.1:50051");
  for (int64_t index = 0; index < run->options.Whole("connections", 4); index++) {
    grpc::ChannelArguments arguments;
    arguments.SetInt("bench.connection", static_cast<int>(index));
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    auto channel =
        grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
    auto until = std::chrono::system_clock::now() + std::chrono::seconds(10);
    if (!channel->WaitForConnected(until)) return false;
    run->connections.push_back({channel, v1::SchedulerService::NewStub(channel),
                                v1::AuditService::NewStub(channel),
                                fairsched::bench::EchoService::NewStub(channel)});
  }
  return true;
}

}  // namespace bench

int main(int count, char** given) {
  using namespace bench;
  const std::map<std::string, std::function<void(Run*)>> modes{
      {"echo", RunCallers<EchoCaller>},
      {"echo-session", RunEchoSessions},
      {"lifecycle", RunCallers<LifecycleCaller>},
      {"batch", RunCallers<BatchCaller>},
      {"probe", RunCallers<ProbeCaller>},
      {"sessions", RunSessions},
      {"acquire", RunAcquire},
      {"fill", RunFill},
      {"take", RunTake},
      {"hold", RunHold},
      {"watch", RunWatch},
  };
  Options options(count, given);
  auto mode = modes.find(options.Text("mode", ""));
  if (mode == modes.end()) {
    fprintf(stderr, "unknown --mode; there are:");
    for (auto& [name, run] : modes) fprintf(stderr, " %s", name.c_str());
    fprintf(stderr, "\n");
    return 2;
  }
  auto* run = new Run(options);
  if (!Connect(run)) {
    fprintf(stderr, "no connection to %s\n", options.Text("target", "127.0.0.1:50051").c_str());
    return 3;
  }
  mode->second(run);
  run->report.Print();
  // Streams may still be open; nothing is left to say on them.
  _exit(0);
}
