--[[ count_plain-1: counts a hit on a plain number, which other programs may count on too: all of it or nothing.
  KEYS[1]  counter      string: what was counted in one window
  ARGV[1]  limit
  ARGV[2]  cost         0 only looks; below 0 gives back, and never below nothing
  ARGV[3]  length, ARGV[4]  offset   µs; a window begins where the time plus the offset is a multiple of the length
  ARGV[5]  start        µs; when the window began that the key means. 0: it means none, and begins with its first hit
  returns  { 0 refused | 1 counted | 2 it is another window now and nothing was done,
             what is counted now (text), µs until the window ends, now µs }
  twin: src/store/memory/plain.rs ]]
local call, fmod = redis.call, math.fmod

-- What INCRBY takes for a number: 64 bits, and no zero in front. Anything else is this key's trouble, and no other's.
local function is_whole(text)
  local digits = string.match(text, "^%-?([1-9]%d*)$")
  return text == "0" or digits and (#digits < 19 or #digits == 19 and digits <= "9223372036854775807")
end

-- Before version 7 a script that asks for the time must say that its effects are what is replicated.
if not redis.REDIS_VERSION_NUM and redis.replicate_commands then redis.replicate_commands() end
local t = call("TIME")
local now = t[1] * 1000000 + t[2]
local limit, cost, length = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local offset, start, ends_in = tonumber(ARGV[4]), tonumber(ARGV[5]), length
if start ~= 0 then
  local into = fmod(fmod(now, length) + offset, length)
  if now - into ~= start then return { 2, "0", 0, now } end
  ends_in = length - into
end

local value = call("GET", KEYS[1])
if value == "" then -- nothing, as where a key is read while it expires
  call("DEL", KEYS[1])
  value = false
end
if value and not is_whole(value) then
  return redis.error_reply("WRONGTYPE the counter holds no whole number")
end
local count, ttl = tonumber(value or 0), value and call("PTTL", KEYS[1]) or -2
-- A key lives through the millisecond in which its time ends.
if start == 0 and ttl >= 0 then ends_in = (ttl + 1) * 1000 end
local taken = cost <= 0 or count + cost <= limit
if taken and cost > 0 then
  value = call("INCRBY", KEYS[1], ARGV[2])
elseif taken and cost < 0 and count > 0 then
  value = call("DECRBY", KEYS[1], string.format("%.0f", math.min(-cost, count)))
end
-- In the same step, whatever the first hit cost, and where somebody lost it; but never pushed back.
if value and ttl < 0 then call("PEXPIRE", KEYS[1], string.format("%.0f", math.ceil(ends_in / 1000))) end
if type(value) == "number" then value = string.format("%.0f", value) end
return { taken and 1 or 0, value or "0", ends_in, now }
