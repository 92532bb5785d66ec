--[[ beat-1: one instance lives, or leaves; how many live?
  KEYS[1]  members      sorted set: instance -> µs of its last beat, on the server's clock
  ARGV[1]  instance     text
  ARGV[2]  leave 0|1
  ARGV[3]  life         ms after its last beat in which an instance still counts
  returns  { members, now µs }                     -- twin: MemoryStore::beat, src/store/memory.rs ]]
local t = redis.call("TIME")
local now, life = t[1] * 1000000 + t[2], ARGV[3] * 1000
if ARGV[2] == "1" then
  redis.call("ZREM", KEYS[1], ARGV[1])
else
  redis.call("ZADD", KEYS[1], now, ARGV[1])
end
redis.call("ZREMRANGEBYSCORE", KEYS[1], "-inf", now - life)
-- A clock that was put back left beats of the future; they would live until it catches up.
redis.call("ZREMRANGEBYSCORE", KEYS[1], now + life, "+inf")
redis.call("PEXPIRE", KEYS[1], ARGV[3])
return { redis.call("ZCARD", KEYS[1]), now }
