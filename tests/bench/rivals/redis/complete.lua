-- Ends leases.  KEYS: leases, held.  ARGV: requests
return redis.call('ZREM', KEYS[1], unpack(ARGV)) + redis.call('HDEL', KEYS[2], unpack(ARGV))
