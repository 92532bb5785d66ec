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

-- Notes what changed of the others' records.
local function note_others(key, all, forgotten, me)
  for instance, r in pairs(all) do
    if r[CHANGED] and instance ~= me then
      call("HSET", key, instance, pack(RECORD, VERSION, r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9]))
    end
  end
  for i = 1, forgotten and #forgotten or 0 do
    if forgotten[i] ~= me then call("HDEL", key, forgotten[i]) end
  end
end

-- What the words say, and with it all pieces that changed, in one command; then without those that are gone.
local function write_log(log, words)
  for number in pairs(log.changed) do
    words[#words + 1] = PIECE .. number
    words[#words + 1] = log.pieces[number]
  end
  call(spread(words))
  for number in pairs(log.gone) do call("HDEL", log.key, PIECE .. number) end
end

-- The last time to live, as text: the same for most buckets of a batch, and dear to format.
local ttl_said, ttl_text

-- The rest of an answer, which most token buckets do not need: what it adds to the outcome, and what follows.
local function rest_of(kind, now, blocked, delay, length, offset, newer, revision, whole, part, period, burst)
  local outcome, rest = blocked > 0 and 16 or 0, ""
  if kind == FIXED then
    outcome = outcome + 32
    local into = elapsed(now, length, offset)
    rest = pack(WINDOW, now > into and now - into or 0, length - into)
  elseif delay > 0 then
    outcome, rest = outcome + 64, pack(DELAY, delay)
  end
  if newer then
    outcome, rest = outcome + 8, rest .. pack(NUMBERS, revision, whole, part, period, burst)
    if length then rest = rest .. pack(FRAME, length, offset) end
  end
  return outcome, rest
end

local function apply(key, message, raw)
  local flags, me, generation, draw, revision, whole, part, period, burst, epoch, seq, born, not_after, used, hold,
    age, cost, count, want, demand, span, debt, debt_acked, outage, outage_acked, place = unpack(MESSAGE, message)
  local kind, windowed, order, length, offset, window, fresh, log = 0, false, false
  if flags >= 4 then
    kind, order, flags = floor(flags / 4) % 8, flags >= 32, flags % 4
    windowed = kind >= FIXED
    if windowed then length, offset, window, fresh, place = unpack(FRAMED, message, place) end
    if order then order = unpack(ORDER, message, place) end
  end
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
  local own_revision, own_whole, own_part, own_period, own_burst, own_length, own_offset
  local blocked = 0
  local r_epoch, r_seq, r_used, r_out, r_end, r_demand, r_debt, r_outage, r_born
  if record and record ~= "" then
    if #record ~= RECORD_BYTES then broken("record") end
    version, r_epoch, r_seq, r_used, r_out, r_end, r_demand, r_debt, r_outage, r_born = unpack(RECORD, record)
    if version ~= VERSION then broken("record") end
  end
  local shift = 0
  if header then
    local bytes = HEADER_BYTES
    if windowed then bytes = bytes + FRAME_BYTES + (kind == LOG and PIECES_BYTES or 0) end
    if #header ~= bytes and #header ~= bytes + BLOCK_BYTES then broken("header") end
    version, tokens, rem, at, out, all_demand, earliest, latest, own_generation, policy_done, own_revision, own_whole,
      own_part, own_period, own_burst, place = unpack(HEADER, header)
    if windowed then own_length, own_offset, place = unpack(FRAME, header, place) end
    if kind == LOG then
      local first, last, entries
      first, last, entries, place = unpack(PIECES, header, place)
      if not (first >= 1 and last >= first - 1 and last <= first + ENTRIES_MAX and entries >= 0) then broken("header") end
      log = open_log(key, first, last, entries)
    end
    if #header > bytes then blocked = unpack(BLOCK, header, place) end
    -- (Comparisons with what is no number are false.)
    if version ~= VERSION + 16 * kind or not (own_period >= 1 and own_burst >= 1 and rem >= 0
      and (rem < own_period or windowed) and at >= 0 and tokens <= NEVER and tokens >= -NEVER) then broken("header") end
    if windowed and not (own_length >= 1 and own_offset >= 0 and own_offset < own_length and rem <= NEVER
      and tokens >= 0) then broken("header") end
    -- A little behind is jitter, and waits; more is a step back, and everything dated moves along.
    if at > raw then
      if at - raw <= JITTER_MAX then now = at else shift = at - raw end
    end
  end
  if r_epoch and not look_only and not order and (epoch < r_epoch or (epoch == r_epoch and seq <= r_seq)) then
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
      blocked = blocked > shift and blocked - shift or 0
      if log then shift_back(log, shift) end
      if earliest < NEVER then earliest = earliest > shift and earliest - shift or 0 end
    end
    if revision >= own_revision then
      if period ~= own_period and not windowed then rem = divide(rem, period, own_period, 0) end
      own_revision = revision
    else
      whole, part, period, burst, length, offset = own_whole, own_part, own_period, own_burst, own_length, own_offset
    end
    if blocked <= now then blocked = 0 end
  else
    tokens, rem, at, out, all_demand, earliest, latest = burst, 0, now, 0, 0, NEVER, 0
    own_generation, policy_done, own_revision = draw, 0, revision
    if kind == LOG then log = open_log(key, 1, 0, 0) end
    if windowed then tokens = 0 elseif kind == QUEUE then tokens = 1 end
  end
  -- A queue holds one token at most, and may owe as many as may wait.
  local cap, owes = burst, 0
  if kind == QUEUE then cap, owes = 1, burst end
  local newer = own_revision > revision

  -- State was lost: the first that knew another generation triggers the policy.
  local foreign = not look_only and not order and generation ~= 0 and generation ~= own_generation
  local lost = foreign and policy_done == 0
  if lost then
    policy_done = 1
    if flags < 2 and not windowed then
      if tokens > -owes then tokens = -owes end
      rem = 0
    end
  end

  -- Refill: up to where the sender last spent, its record counts; after it, less what it reports as used.
  local last_spent, spent_then
  if r_epoch == epoch and r_demand > 0 and not look_only and not foreign and not order then
    last_spent = now > age and now - age or 0
    if r_end > last_spent then
      spent_then = used - r_used
      if last_spent < at then last_spent = at end
    end
  end
  local forgotten
  local looks = earliest <= now
  if windowed then
    if kind == FIXED and now - at >= ends_in(at, length, offset) then looks = true end
    tokens, rem, log = advance(kind, tokens, rem, log, at, now, length, offset)
    if looks then
      -- What an ended lease had counts as spent, just before its end.
      all = all or read_all(key)
      local ended = {}
      for _, r in pairs(all) do
        if r[DEMAND] > 0 and r[END] <= now then ended[#ended + 1] = { r[END], r } end
      end
      table.sort(ended, function(a, b) return a[1] < b[1] end)
      for i = 1, #ended do
        local r = ended[i][2]
        local when = r[END] > 0 and r[END] - 1 or 0
        tokens, rem, log = add(kind, tokens, rem, log, now, when, r[OUT], length, offset)
        r[OUT], r[DEMAND], r[CHANGED] = 0, 0, true
      end
    end
  elseif not looks then
    local spent = 0
    if spent_then then
      tokens, rem = refill(tokens, rem, last_spent - at, cap - out, whole, part, period)
      at, spent = last_spent, spent_then
    end
    tokens, rem = refill(tokens, rem, now - at, cap - (out - spent), whole, part, period)
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
      tokens, rem = refill(tokens, rem, cut - at, cap - (out - spent), whole, part, period)
      if cut > at then at = cut end
      if r then
        out = out > r[OUT] and out - r[OUT] or 0
        r[OUT], r[DEMAND], r[CHANGED] = 0, 0, true
        if r == mine then spent = 0 end
      elseif mine[DEMAND] > 0 then
        spent = spent_then
      end
    end
    tokens, rem = refill(tokens, rem, now - at, cap - (out - spent), whole, part, period)
  end
  if looks then
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

  local room = cap > out and cap - out or 0
  if look_only or order then
    local free
    if not windowed and tokens >= room then tokens, rem = room, 0 end
    if order then
      if order < 0 then
        if windowed then tokens = 0 else tokens = room end
        rem, order = 0, 0
        if log then clear_log(log) end
      end
      blocked = least(now + order, NEVER)
      if blocked <= now then blocked = 0 end
    end
    if windowed then
      free = burst - counted(kind, tokens, rem, now, length, offset) - out
    else
      free = tokens + owes
    end
    local retry_after, delay, ttl = 0, 0, 0
    if blocked > 0 then
      retry_after, free = blocked - now, 0
    else
      if cost < 1 then cost = 1 end
      if windowed then
        retry_after = wait_in(kind, tokens, rem, log, now, burst - out - cost, earliest, length, offset)
      else
        retry_after = wait(cost - owes - tokens, rem, whole, part, period)
      end
    end
    if kind == QUEUE and look_only then delay = wait(1 - tokens, rem, whole, part, period) end
    local written = order and (header or blocked > 0)
    if written then
      if windowed then
        ttl = time_until(kind, tokens, rem, log, now, 0, length, offset)
      else
        ttl = wait(cap - tokens, rem, whole, part, period)
      end
      local over = (latest > now and latest - now or 0) + RECORD_KEPT
      if blocked > 0 and blocked - now > over then over = blocked - now end
      if over > ttl then ttl = over end
      ttl = floor((least(ttl, NEVER) + 999) / 1000)
      local bytes = pack(HEADER, VERSION + 16 * kind, tokens, rem, at, out, all_demand, earliest, latest, own_generation,
        policy_done, own_revision, whole, part, period, burst)
      if windowed then bytes = bytes .. pack(FRAME, length, offset) end
      if log then bytes = bytes .. pack(PIECES, log.first, log.last, log.entries) end
      if blocked > 0 then bytes = bytes .. pack(BLOCK, blocked) end
      if wipe then call("DEL", key) end
      if log then write_log(log, { "HSET", key, "h", bytes }) else call("HSET", key, "h", bytes) end
      if all then note_others(key, all, forgotten) end
      call("PEXPIRE", key, format("%d", ttl))
    end
    local outcome, rest =
      rest_of(kind, now, blocked, delay, length, offset, newer, own_revision, whole, part, period, burst)
    return pack(ANSWER, outcome, epoch, seq, now, (header or written) and own_generation or 0, 0, 0,
      free > 0 and free or 0, retry_after, ttl * 1000) .. rest
  end

  -- The sender's lease is over though nobody looked, or a new life of its cell began.
  if r_epoch and r_demand > 0 and (r_end <= now or r_epoch < epoch) then
    out = out > r_out and out - r_out or 0
    all_demand = all_demand > r_demand and all_demand - r_demand or 0
    if windowed then
      local when = least(r_end > 0 and r_end - 1 or 0, now)
      tokens, rem, log = add(kind, tokens, rem, log, now, when, r_out, length, offset)
    end
    r_out, r_demand = 0, 0
  end
  -- Settle: what was lent and is neither used nor held goes back.
  local used_before, out_before = used, 0
  if foreign then
    out_before = hold
  elseif r_epoch then
    if r_demand > 0 then used_before, out_before = r_used, r_out elseif r_epoch < epoch then used_before = 0 end
  end
  local old = kind == FIXED and window > 0 and window < start_of(now, length, offset)
  if old then hold, want = 0, 0 end
  local lent, demand_before = 0, 0
  if r_epoch then lent, demand_before = r_out, r_demand end
  out = (out > lent and out - lent or 0) + hold
  if out > SUM_MAX then out = SUM_MAX end
  -- Charge what was spent without a grant: what is known as booked, once.
  local known_debt, known_outage = debt_acked, outage_acked
  if r_epoch and r_born == born then
    if not foreign or r_debt > debt_acked then known_debt = r_debt end
    if not foreign or r_outage > outage_acked then known_outage = r_outage end
  end
  local owing, let_through = debt > known_debt and debt - known_debt or 0, outage - known_outage
  local free
  if not windowed then
    -- A time to leave that is given back perishes: those behind it have theirs already.
    if kind == QUEUE and used < used_before then used_before = used end
    tokens = tokens + out_before - (used - used_before) - hold
    if owing > 0 then tokens = tokens - owing end
    if let_through > 0 and tokens + owes > 0 then
      tokens = let_through < tokens + owes and tokens - let_through or -owes
    end
    if tokens < -TOKENS_MAX then tokens = -TOKENS_MAX end
    room = cap > out and cap - out or 0
    if tokens >= room then tokens, rem = room, 0 end
    free = tokens + owes
  else
    if lost and flags < 2 then
      local missing = burst - out - counted(kind, tokens, rem, now, length, offset)
      if missing > 0 then
        tokens, rem, log = add(kind, tokens, rem, log, now, now, missing, length, offset)
      end
    end
    if not old then
      -- Where there were refunds, all that is gone of what was lent counts as spent, and the rest as refunded.
      local spent, added = used - used_before, 0
      if fresh > 0 and not foreign and out_before > hold then added = out_before - hold end
      if spent > added then added = spent end
      if added > 0 then tokens, rem, log = add(kind, tokens, rem, log, now, now, added, length, offset) end
      if fresh > 0 and added > spent then
        tokens, log = take_back(kind, tokens, log, now, fresh, added - spent, length, offset)
      end
      if owing > 0 then tokens, rem, log = add(kind, tokens, rem, log, now, now, owing, length, offset) end
    end
    free = burst - counted(kind, tokens, rem, now, length, offset) - out
    if let_through > 0 and free > 0 and not old then
      let_through = least(let_through, free)
      tokens, rem, log = add(kind, tokens, rem, log, now, now, let_through, length, offset)
      free = free - let_through
    end
  end
  local delay = 0
  if kind == QUEUE then delay = wait(1 - tokens, rem, whole, part, period) end

  -- Need, then want.
  local given, grant = 0, 0
  if cost > 0 and free > 0 and blocked == 0 then
    given = floor(free / cost)
    if given > count then given = count end
    free = free - given * cost
  end
  all_demand = (all_demand > demand_before and all_demand - demand_before or 0) + demand
  if all_demand > SUM_MAX then all_demand = SUM_MAX end
  if want > 0 and given == count and blocked == 0 then
    local piece = cost > 1 and cost or 1
    -- A share below one request's cost would never serve one: so much may be had by whoever asks.
    grant = hold + want <= piece and want or floor((free + out) * demand / all_demand) - hold
    if grant > want then grant = want end
    if grant > free then grant = free end
    if grant < 0 then grant = 0 end
    -- Whole requests only: pieces too small for one would lie about in every instance.
    grant = grant - (hold + grant) % piece
    if grant < 0 then grant = 0 end
    free, out = free - grant, out + grant
    if out > SUM_MAX then out = SUM_MAX end
  end
  if not windowed then
    tokens = free - owes
  elseif given > 0 then
    tokens, rem, log = add(kind, tokens, rem, log, now, now, given * cost, length, offset)
  end

  -- Note it.
  local r_new_end = now + span < NEVER and now + span or NEVER
  if kind == FIXED then
    local over = ends_in(now, length, offset)
    if r_new_end - now > over then r_new_end = now + over end -- with its window at the latest
  end
  local next_look = now + LOOK_EVERY > r_new_end and now + LOOK_EVERY or r_new_end
  if next_look < earliest then earliest = next_look end
  if r_new_end > latest then latest = r_new_end end
  local ttl
  if windowed then
    ttl = time_until(kind, tokens, rem, log, now, 0, length, offset)
  else
    ttl = wait(cap - tokens, rem, whole, part, period)
  end
  local over = (latest > now and latest - now or 0) + RECORD_KEPT
  if blocked > 0 and blocked - now > over then over = blocked - now end
  if over > ttl then ttl = over end
  if ttl > NEVER then ttl = NEVER end
  ttl = floor((ttl + 999) / 1000)
  header = pack(HEADER, VERSION + 16 * kind, tokens, rem, at, out, all_demand, earliest, latest, own_generation,
    policy_done, own_revision, whole, part, period, burst)
  if windowed then header = header .. pack(FRAME, length, offset) end
  if log then header = header .. pack(PIECES, log.first, log.last, log.entries) end
  if blocked > 0 then header = header .. pack(BLOCK, blocked) end
  record = pack(RECORD, VERSION, epoch, seq, used, hold + grant, r_new_end, demand, debt, outage, born)
  if wipe then call("DEL", key) end
  -- All in one command: it is refused as a whole, before anything is written.
  if log then write_log(log, { "HSET", key, "h", header, me, record }) else call("HSET", key, "h", header, me, record) end
  if all then note_others(key, all, forgotten, me) end
  if ttl ~= ttl_said then ttl_said, ttl_text = ttl, format("%d", ttl) end
  call("PEXPIRE", key, ttl_text)

  local retry_after = 0
  if blocked > 0 then
    retry_after, free = blocked - now, 0
  else
    if cost < 1 then cost = 1 end
    if windowed then
      retry_after = wait_in(kind, tokens, rem, log, now, burst - out - cost, earliest, length, offset)
    else
      retry_after = wait(cost - free, rem, whole, part, period)
    end
  end
  if given == 0 then delay = 0 end
  local outcome, rest = lost and 4 or 0, false
  if newer or kind == FIXED or blocked > 0 or delay > 0 then
    local more
    more, rest = rest_of(kind, now, blocked, delay, length, offset, newer, own_revision, whole, part, period, burst)
    outcome = outcome + more
  end
  local answer = pack(ANSWER, outcome, epoch, seq, now, own_generation, given, grant, free > 0 and free or 0,
    retry_after, ttl * 1000)
  return rest and answer .. rest or answer
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
