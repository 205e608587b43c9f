-- Start-time fair queueing between users in one Redis hash slot: adds requests.
-- KEYS: users (sorted set: meter of every user with something waiting), state (hash: v, meters)
-- ARGV: prefix of the users' lists, then user, request, cost for each request
local users, state, prefix = KEYS[1], KEYS[2], ARGV[1]
local v = tonumber(redis.call('HGET', state, 'v') or '0')
for at = 2, #ARGV, 3 do
  local user, request, cost = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if redis.call('RPUSH', prefix .. user, cost .. ' ' .. request) == 1 then
    local meter = tonumber(redis.call('HGET', state, 'm' .. user) or '0')
    redis.call('ZADD', users, math.max(meter, v), user)
  end
end
return (#ARGV - 1) / 3
