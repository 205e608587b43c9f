// Closed-loop load on Redis: each connection enqueues `batch` requests, takes as many, completes them.
//
//   redis-load PORT SHAPE CONNECTIONS BATCH SECONDS WARMUP FOLDER
//
// SHAPE is `streams` (XADD, XREADGROUP, XACK and XDEL; first in, first out) or `lua` (the scripts of
// FOLDER; fair between users).  The commands of one step travel in one write.  One line of JSON.
#include <hiredis/hiredis.h>
#include <poll.h>

#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "measure.h"

namespace {

using bench::Nanos;
using bench::Now;
using Words = std::vector<std::string>;

std::string scripts[3];  // digests: enqueue, take, complete
int64_t next_id = 0;

void Append(redisContext* redis, const Words& words) {
  std::vector<const char*> texts;
  std::vector<size_t> lengths;
  for (auto& word : words) {
    texts.push_back(word.data());
    lengths.push_back(word.size());
  }
  redisAppendCommandArgv(redis, static_cast<int>(words.size()), texts.data(), lengths.data());
}

void Send(redisContext* redis) {
  for (int done = 0; !done;) {
    if (redisBufferWrite(redis, &done) != REDIS_OK) {
      fprintf(stderr, "%s\n", redis->errstr);
      exit(1);
    }
  }
}

struct Connection {
  redisContext* redis;
  std::string name;
  bool streams;
  int batch;
  int step = 0;        // 0 enqueue, 1 take, 2 complete
  int owed = 0;        // replies of this step
  Nanos began = 0, step_began = 0;
  Words taken;
  std::mt19937_64 random;

  std::string User() { return "user-" + std::to_string(random() % 1000); }
  static std::string Request() {
    char text[64];
    snprintf(text, sizeof text, "%016lx-%010ld", static_cast<long>(getpid()), next_id++);
    return text;
  }
  static std::string Body() { return std::string(96, 'x'); }

  void Enqueue() {
    step = 0;
    began = step_began = Now();
    if (streams) {
      owed = batch;
      for (int item = 0; item < batch; item++) {
        Append(redis, {"XADD", "q", "*", "user", User(), "request", Request(), "body", Body()});
      }
    } else {
      owed = 1;
      Words words{"EVALSHA", scripts[0], "2", "users", "state", "u:"};
      for (int item = 0; item < batch; item++) {
        words.push_back(User());
        words.push_back(Request() + Body());
        words.push_back(std::to_string(200 + random() % 3000));
      }
      Append(redis, words);
    }
    Send(redis);
  }

  void Take() {
    step = 1;
    owed = 1;
    step_began = Now();
    taken.clear();
    std::string count = std::to_string(batch);
    if (streams) {
      Append(redis, {"XREADGROUP", "GROUP", "g", name, "COUNT", count, "STREAMS", "q", ">"});
    } else {
      std::string now = std::to_string(Now() / 1'000'000);
      Append(redis, {"EVALSHA", scripts[1], "4", "users", "state", "leases", "held", "u:", count,
                     now, "30000"});
    }
    Send(redis);
  }

  void Complete() {
    step = 2;
    step_began = Now();
    if (streams) {
      owed = 2;
      Words acked{"XACK", "q", "g"}, deleted{"XDEL", "q"};
      acked.insert(acked.end(), taken.begin(), taken.end());
      deleted.insert(deleted.end(), taken.begin(), taken.end());
      Append(redis, acked);
      Append(redis, deleted);
    } else {
      owed = 1;
      Words words{"EVALSHA", scripts[2], "2", "leases", "held"};
      words.insert(words.end(), taken.begin(), taken.end());
      Append(redis, words);
    }
    Send(redis);
  }

  void Collect(const redisReply* reply) {
    if (reply->type == REDIS_REPLY_ERROR) {
      fprintf(stderr, "%s\n", reply->str);
      exit(1);
    }
    if (step != 1 || reply->type != REDIS_REPLY_ARRAY) return;
    if (!streams) {
      for (size_t at = 0; at < reply->elements; at++) {
        taken.emplace_back(reply->element[at]->str, reply->element[at]->len);
      }
    } else if (reply->elements) {
      const redisReply* entries = reply->element[0]->element[1];
      for (size_t at = 0; at < entries->elements; at++) {
        taken.emplace_back(entries->element[at]->element[0]->str);
      }
    }
  }
};

std::string Digest(redisContext* redis, const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  auto* reply = static_cast<redisReply*>(
      redisCommand(redis, "SCRIPT LOAD %b", text.str().data(), text.str().size()));
  if (reply == nullptr || reply->type != REDIS_REPLY_STRING) {
    fprintf(stderr, "%s: %s\n", path.c_str(), reply ? reply->str : redis->errstr);
    exit(1);
  }
  std::string digest = reply->str;
  freeReplyObject(reply);
  return digest;
}

}  // namespace

int main(int count, char** given) {
  if (count != 8) return 2;
  int port = atoi(given[1]), connections = atoi(given[3]), batch = atoi(given[4]);
  bool streams = strcmp(given[2], "streams") == 0;
  std::string folder = given[7];
  redisContext* first = redisConnect("127.0.0.1", port);
  if (first == nullptr || first->err) return 3;
  const char* names[] = {"/enqueue.lua", "/take.lua", "/complete.lua"};
  for (int at = 0; at < 3; at++) scripts[at] = Digest(first, folder + names[at]);
  freeReplyObject(redisCommand(first, "XGROUP CREATE q g 0 MKSTREAM"));
  std::vector<Connection> all;
  std::vector<pollfd> polled;
  for (int at = 0; at < connections; at++) {
    redisContext* redis = redisConnectNonBlock("127.0.0.1", port);
    all.push_back({redis, "worker-" + std::to_string(at), streams, batch});
    all.back().random.seed(at);
    polled.push_back({redis->fd, POLLIN, 0});
  }
  bench::Report report(Now() + static_cast<Nanos>(atof(given[6]) * bench::kSecond), atof(given[5]), 0);
  for (auto& connection : all) connection.Enqueue();
  while (!report.Over(Now())) {
    poll(polled.data(), polled.size(), 20);
    report.Watch(Now());
    for (size_t at = 0; at < all.size(); at++) {
      if (!(polled[at].revents & POLLIN)) continue;
      Connection& to = all[at];
      if (redisBufferRead(to.redis) != REDIS_OK) return 4;
      void* reply = nullptr;
      while (redisGetReplyFromReader(to.redis, &reply) == REDIS_OK && reply != nullptr) {
        to.Collect(static_cast<redisReply*>(reply));
        freeReplyObject(reply);
        if (--to.owed > 0) continue;
        Nanos now = Now();
        const char* steps[] = {"enqueue", "take", "complete"};
        report.Record(steps[to.step], to.step_began, now, batch);
        if (to.step == 0) {
          to.Take();
        } else if (to.step == 1 && !to.taken.empty()) {
          to.Complete();
        } else {
          if (to.step == 2) report.Record("lifecycle", to.began, now, to.taken.size());
          to.Enqueue();
        }
      }
    }
  }
  report.Watch(Now());
  report.Print();
  return 0;
}
