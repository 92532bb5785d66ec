--[[ sync_buckets-n: applies one message of the lease protocol to each of n buckets.
  KEYS[i]    bucket       hash: "h" -> header, 8 bytes of an instance's id -> its record; both packed, see HEADER, RECORD
  ARGV[1]    now          µs; 0 asks the server's clock
  ARGV[i+1]  message      packed, see MESSAGE; every number within the bounds of book.rs
  returns    an answer for each bucket: packed, see ANSWER (and NUMBERS, when a higher revision is in force),
             or "E" and the reason, when that bucket alone failed
  twin: src/lease/book.rs, step by step. Numbers are whole, and exact in doubles: below 2^53. ]]
local call, pack, unpack, floor, format = redis.call, struct.pack, struct.unpack, math.floor, string.format

-- flags (1 look, 2 start full when lost), instance, generation, draw, revision, rate (whole tokens a µs,
-- and part / period), burst, epoch, seq, born, not_after, used, hold, age, need (cost, count), want, demand,
-- span, debt and outage (sum, acked)
local MESSAGE = "<Bc8ddddddddddddddddddddddd"
-- version, tokens, rem, at, out, demand, earliest, latest, generation, policy_done, revision, whole, part, period, burst
local HEADER, HEADER_BYTES = "<Bdddddddddddddd", 113
-- version, epoch, seq, used, out, end, demand, debt, outage, born
local RECORD, RECORD_BYTES = "<Bddddddddd", 73
-- outcome (0 applied, 1 late, 2 stale) + 4 lost + 8 numbers follow, epoch, seq, now, generation, given, grant,
-- free, retry_after, key_ttl
local ANSWER, UNANSWERED, NUMBERS = "<Bddddddddd", "<Bddd", "<ddddd"
local VERSION = 1

local NEVER, TOKENS_MAX, SUM_MAX = 9007199254740992, 1125899906842624, 4503599627370496
local JITTER_MAX, RECORD_KEPT, LOOK_EVERY = 1000000, 60000000, 250000
-- Fields of a record that was read with all others, as a table.
local OUT, END, DEMAND, CHANGED = 4, 5, 6, 10

-- floor((a * b + add) / c) and the remainder, exact, where a < c < 2^45 or the sum is below 2^53.
local function divide(a, b, c, add)
  local n = a * b + add
  if n < NEVER then
    local q = floor(n / c)
    return q, n - q * c
  end
  -- Long multiplication, 7 bits of b at a time: no number here exceeds c * 2^8.
  local place, q, r = 1, 0, 0
  while place * 128 <= b do place = place * 128 end
  while place >= 1 do
    local digit = floor(b / place)
    b = b - digit * place
    n = r * 128 + a * digit
    local more = floor(n / c)
    q, r = q * 128 + more, n - more * c
    place = place / 128
  end
  r = r + add
  if r >= c then return q + 1, r - c end
  return q, r
end

-- Tokens that come in `span`, and the new remainder. (Beyond 2^53 a rough number: more than any bucket lacks.)
local function gain(span, rem, whole, part, period)
  if part == 0 then return span * whole, rem end
  if span * part + rem < NEVER then
    local more, left = divide(span, part, period, rem)
    return span * whole + more, left
  end
  local turns = floor(span / period)
  local more, left = divide(span - turns * period, part, period, rem)
  return span * whole + turns * part + more, left
end

-- One piece of the refill.
local function refill(tokens, rem, span, cap, whole, part, period)
  if span <= 0 then return tokens, rem end
  if tokens >= cap then return tokens, 0 end
  local more, left = gain(span, rem, whole, part, period)
  if more < cap - tokens then return tokens + more, left end
  return cap, 0
end

-- The time in which `missing` tokens come, rounded up.
local function wait(missing, rem, whole, part, period)
  if missing <= 0 then return 0 end
  local count, parts = whole * period + part, missing * period
  if parts + count < NEVER then return floor((parts - rem + count - 1) / count) end
  -- A guess that is at most a few µs off, then the truth.
  local span = floor((parts - rem) / count)
  if span > NEVER then span = NEVER end
  while span < NEVER and gain(span, rem, whole, part, period) < missing do span = span + 1 end
  while span > 0 and gain(span - 1, rem, whole, part, period) >= missing do span = span - 1 end
  return span
end

local function broken(what)
  error({ err = "WRONGTYPE the " .. what .. " of this bucket is not ours" })
end

-- All records, as { instance -> table }.
local function read_all(key)
  local flat, all = call("HGETALL", key), {}
  for i = 1, #flat, 2 do
    local instance, bytes = flat[i], flat[i + 1]
    if #instance == 8 and bytes ~= "" then
      if #bytes ~= RECORD_BYTES then broken("record") end
      local record = { unpack(RECORD, bytes) }
      if table.remove(record, 1) ~= VERSION then broken("record") end
      record[CHANGED] = false -- in place of where unpack stopped
      all[instance] = record
    end
  end
  return all
end

local function earlier(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  return a[2] and not b[2] -- at one time, ends come before the sender's last spending
end

-- The last time to live, as text: the same for most buckets of a batch, and dear to format.
local ttl_said, ttl_text

local function apply(key, message, raw)
  local flags, me, generation, draw, revision, whole, part, period, burst, epoch, seq, born, not_after, used, hold,
    age, cost, count, want, demand, span, debt, debt_acked, outage, outage_acked = unpack(MESSAGE, message)
  local look_only, now = flags % 2 == 1, raw
  if not look_only and not_after ~= 0 and raw > not_after then
    return pack(UNANSWERED, 1, epoch, seq, raw)
  end

  -- What is there.
  local wipe, header, record = false, false, false
  local got = redis.pcall("HMGET", key, "h", me)
  if got.err then
    -- An empty string is nothing, as it is where a key is read while it expires.
    local kind = call("TYPE", key)
    if (kind.ok or kind) ~= "string" or call("STRLEN", key) ~= 0 then error({ err = got.err }) end
    wipe = true
  else
    header, record = got[1], got[2]
    if not header or header == "" then
      wipe = header == "" or call("EXISTS", key) == 1
      header, record = false, false
    end
  end

  local version, tokens, rem, at, out, all_demand, earliest, latest, own_generation, policy_done
  local own_revision, own_whole, own_part, own_period, own_burst
  local r_epoch, r_seq, r_used, r_out, r_end, r_demand, r_debt, r_outage, r_born
  if record and record ~= "" then
    if #record ~= RECORD_BYTES then broken("record") end
    version, r_epoch, r_seq, r_used, r_out, r_end, r_demand, r_debt, r_outage, r_born = unpack(RECORD, record)
    if version ~= VERSION then broken("record") end
  end
  local shift = 0
  if header then
    if #header ~= HEADER_BYTES then broken("header") end
    version, tokens, rem, at, out, all_demand, earliest, latest, own_generation, policy_done, own_revision, own_whole,
      own_part, own_period, own_burst = unpack(HEADER, header)
    -- (Comparisons with what is no number are false.)
    if version ~= VERSION or not (own_period >= 1 and own_burst >= 1 and rem >= 0 and rem < own_period and at >= 0
      and tokens <= NEVER and tokens >= -NEVER) then broken("header") end
    -- A little behind is jitter, and waits; more is a step back, and everything dated moves along.
    if at > raw then
      if at - raw <= JITTER_MAX then now = at else shift = at - raw end
    end
  end
  if r_epoch and not look_only and (epoch < r_epoch or (epoch == r_epoch and seq <= r_seq)) then
    return pack(UNANSWERED, 2, epoch, seq, now)
  end

  local all
  if header then
    if shift > 0 then
      all = read_all(key)
      for _, r in pairs(all) do
        r[END], r[CHANGED] = r[END] > shift and r[END] - shift or 0, true
      end
      if r_end then r_end = r_end > shift and r_end - shift or 0 end
      at, latest = now, latest > shift and latest - shift or 0
      if earliest < NEVER then earliest = earliest > shift and earliest - shift or 0 end
    end
    if revision >= own_revision then
      if period ~= own_period then rem = divide(rem, period, own_period, 0) end
      own_revision = revision
    else
      whole, part, period, burst = own_whole, own_part, own_period, own_burst
    end
  else
    tokens, rem, at, out, all_demand, earliest, latest = burst, 0, now, 0, 0, NEVER, 0
    own_generation, policy_done, own_revision = draw, 0, revision
  end

  -- State was lost: the first that knew another generation triggers the policy.
  local foreign = not look_only and generation ~= 0 and generation ~= own_generation
  local lost = foreign and policy_done == 0
  if lost then
    policy_done = 1
    if flags < 2 then
      if tokens > 0 then tokens = 0 end
      rem = 0
    end
  end

  -- Refill: up to where the sender last spent, its record counts; after it, less what it reports as used.
  local last_spent, spent_then
  if r_epoch == epoch and r_demand > 0 and not look_only and not foreign then
    last_spent = now > age and now - age or 0
    if r_end > last_spent then
      spent_then = used - r_used
      if last_spent < at then last_spent = at end
    end
  end
  local forgotten
  if earliest > now then
    local spent = 0
    if spent_then then
      tokens, rem = refill(tokens, rem, last_spent - at, burst - out, whole, part, period)
      at, spent = last_spent, spent_then
    end
    tokens, rem = refill(tokens, rem, now - at, burst - (out - spent), whole, part, period)
  else
    -- A lease may have ended. Each counts up to its own end, and is spent after it.
    all = all or read_all(key)
    local cuts, n, spent, mine = {}, 0, 0, all[me]
    for _, r in pairs(all) do
      if r[DEMAND] > 0 and r[END] <= now then
        n = n + 1
        cuts[n] = { r[END], r }
      end
    end
    if spent_then then
      n = n + 1
      cuts[n] = { last_spent, false }
    end
    table.sort(cuts, earlier)
    for i = 1, n do
      local cut, r = cuts[i][1], cuts[i][2]
      tokens, rem = refill(tokens, rem, cut - at, burst - (out - spent), whole, part, period)
      if cut > at then at = cut end
      if r then
        out = out > r[OUT] and out - r[OUT] or 0
        r[OUT], r[DEMAND], r[CHANGED] = 0, 0, true
        if r == mine then spent = 0 end
      elseif mine[DEMAND] > 0 then
        spent = spent_then
      end
    end
    tokens, rem = refill(tokens, rem, now - at, burst - (out - spent), whole, part, period)
    -- Forget what is long over, and sum up the rest anew.
    out, all_demand, earliest, latest, forgotten = 0, 0, NEVER, 0, {}
    for instance, r in pairs(all) do
      if r[DEMAND] > 0 then
        out, all_demand = out + r[OUT], all_demand + r[DEMAND]
        if out > SUM_MAX then out = SUM_MAX end
        if all_demand > SUM_MAX then all_demand = SUM_MAX end
        if r[END] < earliest then earliest = r[END] end
        if r[END] > latest then latest = r[END] end
      elseif r[END] + RECORD_KEPT < now then
        forgotten[#forgotten + 1] = instance
      end
    end
    for i = 1, #forgotten do all[forgotten[i]] = nil end
    if earliest < NEVER and earliest < now + LOOK_EVERY then
      earliest = now + LOOK_EVERY < NEVER and now + LOOK_EVERY or NEVER
    end
    if r_epoch then
      local r = all[me]
      if r then r_out, r_demand = r[OUT], r[DEMAND] else r_epoch = nil end
    end
  end
  at = now

  local room = burst > out and burst - out or 0
  if look_only then
    if tokens >= room then tokens, rem = room, 0 end
    local answer = pack(ANSWER, own_revision > revision and 8 or 0, epoch, seq, now, header and own_generation or 0, 0, 0,
      tokens > 0 and tokens or 0, wait((cost > 1 and cost or 1) - tokens, rem, whole, part, period), 0)
    if own_revision > revision then
      return answer .. pack(NUMBERS, own_revision, whole, part, period, burst)
    end
    return answer
  end

  -- The sender's lease is over though nobody looked, or a new life of its cell began.
  if r_epoch and r_demand > 0 and (r_end <= now or r_epoch < epoch) then
    out = out > r_out and out - r_out or 0
    all_demand = all_demand > r_demand and all_demand - r_demand or 0
    r_out, r_demand = 0, 0
  end
  -- Settle: what was lent and is neither used nor held goes back.
  local used_before, out_before = used, 0
  if foreign then
    out_before = hold
  elseif r_epoch then
    if r_demand > 0 then used_before, out_before = r_used, r_out elseif r_epoch < epoch then used_before = 0 end
  end
  local lent, demand_before = 0, 0
  if r_epoch then lent, demand_before = r_out, r_demand end
  tokens = tokens + out_before - (used - used_before) - hold
  out = (out > lent and out - lent or 0) + hold
  if out > SUM_MAX then out = SUM_MAX end
  -- Charge what was spent without a grant: what is known as booked, once.
  local known_debt, known_outage = debt_acked, outage_acked
  if r_epoch and r_born == born then
    if not foreign or r_debt > debt_acked then known_debt = r_debt end
    if not foreign or r_outage > outage_acked then known_outage = r_outage end
  end
  if debt > known_debt then tokens = tokens - (debt - known_debt) end
  if outage > known_outage and tokens > 0 then
    local charge = outage - known_outage
    tokens = charge < tokens and tokens - charge or 0
  end
  if tokens < -TOKENS_MAX then tokens = -TOKENS_MAX end
  room = burst > out and burst - out or 0
  if tokens >= room then tokens, rem = room, 0 end

  -- Need, then want.
  local given, grant = 0, 0
  if cost > 0 and tokens > 0 then
    given = floor(tokens / cost)
    if given > count then given = count end
    tokens = tokens - given * cost
  end
  all_demand = (all_demand > demand_before and all_demand - demand_before or 0) + demand
  if all_demand > SUM_MAX then all_demand = SUM_MAX end
  if want > 0 and given == count then
    local piece = cost > 1 and cost or 1
    -- A share below one request's cost would never serve one: so much may be had by whoever asks.
    grant = hold + want <= piece and want or floor((tokens + out) * demand / all_demand) - hold
    if grant > want then grant = want end
    if grant > tokens then grant = tokens end
    if grant < 0 then grant = 0 end
    -- Whole requests only: pieces too small for one would lie about in every instance.
    grant = grant - (hold + grant) % piece
    if grant < 0 then grant = 0 end
    tokens, out = tokens - grant, out + grant
    if out > SUM_MAX then out = SUM_MAX end
  end

  -- Note it.
  local r_new_end = now + span < NEVER and now + span or NEVER
  local next_look = now + LOOK_EVERY > r_new_end and now + LOOK_EVERY or r_new_end
  if next_look < earliest then earliest = next_look end
  if r_new_end > latest then latest = r_new_end end
  local ttl = wait(burst - tokens, rem, whole, part, period)
  local over = (latest > now and latest - now or 0) + RECORD_KEPT
  if over > ttl then ttl = over end
  if ttl > NEVER then ttl = NEVER end
  ttl = floor((ttl + 999) / 1000)
  header = pack(HEADER, VERSION, tokens, rem, at, out, all_demand, earliest, latest, own_generation, policy_done,
    own_revision, whole, part, period, burst)
  record = pack(RECORD, VERSION, epoch, seq, used, hold + grant, r_new_end, demand, debt, outage, born)
  if wipe then call("DEL", key) end
  -- Header and record in one command: it is refused as a whole, before anything is written.
  call("HSET", key, "h", header, me, record)
  if all then
    for instance, r in pairs(all) do
      if r[CHANGED] and instance ~= me then
        call("HSET", key, instance, pack(RECORD, VERSION, r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9]))
      end
    end
    for i = 1, forgotten and #forgotten or 0 do
      if forgotten[i] ~= me then call("HDEL", key, forgotten[i]) end
    end
  end
  if ttl ~= ttl_said then ttl_said, ttl_text = ttl, format("%d", ttl) end
  call("PEXPIRE", key, ttl_text)

  local retry_after = 0
  if given < count or (want > 0 and grant == 0) then
    retry_after = wait((cost > 1 and cost or 1) - tokens, rem, whole, part, period)
  end
  local outcome = (lost and 4 or 0) + (own_revision > revision and 8 or 0)
  local answer = pack(ANSWER, outcome, epoch, seq, now, own_generation, given, grant, tokens > 0 and tokens or 0,
    retry_after, ttl * 1000)
  if own_revision > revision then
    return answer .. pack(NUMBERS, own_revision, whole, part, period, burst)
  end
  return answer
end

local now = tonumber(ARGV[1])
if now == 0 then
  -- Before version 7 a script that asks for the time must say that its effects are what is replicated.
  if not redis.REDIS_VERSION_NUM and redis.replicate_commands then redis.replicate_commands() end
  local time = call("TIME")
  now = time[1] * 1000000 + time[2]
end
local answers = {}
for i = 1, #KEYS do
  local fine, answer = pcall(apply, KEYS[i], ARGV[i + 1], now)
  if not fine then
    answer = "E" .. (type(answer) == "table" and answer.err or tostring(answer))
  end
  answers[i] = answer
end
return answers
