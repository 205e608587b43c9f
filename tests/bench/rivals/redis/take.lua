-- Takes requests in the order of their users' meters and leases them.
-- KEYS: users, state, leases (sorted set: end of each lease), held (hash: request under a lease)
-- ARGV: prefix of the users' lists, how many, now (ms), length of the lease (ms)
local users, state, leases, held = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local prefix, count, now, length = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local taken = {}
for _, request in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, count)) do
  redis.call('ZADD', leases, now + length, request)
  taken[#taken + 1] = request
end
while #taken < count do
  local first = redis.call('ZRANGE', users, 0, 0, 'WITHSCORES')
  if #first == 0 then break end
  local user, meter = first[1], tonumber(first[2])
  local item = redis.call('LPOP', prefix .. user)
  local cost, request = string.match(item, '^(%d+) (.*)$')
  local after = meter + tonumber(cost)
  redis.call('HSET', state, 'v', string.format('%.0f', meter))
  if redis.call('EXISTS', prefix .. user) == 1 then
    redis.call('ZADD', users, after, user)
  else
    redis.call('ZREM', users, user)
    redis.call('HSET', state, 'm' .. user, string.format('%.0f', after))
  end
  redis.call('ZADD', leases, now + length, request)
  redis.call('HSET', held, request, user)
  taken[#taken + 1] = request
end
return taken
