-- What counts in windows. Twins: src/algorithm/frame.rs, fixed_window.rs, sliding_log.rs, sliding_counter.rs.
-- A state is `current` (what is counted; of a log the sum of its weights), `last` (counters only) and `log`.

-- How far into its window a time is, when that began, and how long until it ends.
local function elapsed(at, length, offset)
  return fmod(fmod(at, length) + offset, length)
end

local function start_of(at, length, offset)
  local start = at - elapsed(at, length, offset)
  return start > 0 and start or 0
end

local function ends_in(at, length, offset)
  return length - elapsed(at, length, offset)
end

local function least(a, b)
  return a < b and a or b
end

-- Lets what has left leave.
local function advance(kind, current, last, log, at, now, length, offset)
  if kind == LOG then
    local place, bytes = 1, #log
    while place <= bytes do
      local when, weight = unpack(ENTRY, log, place)
      if now - when < length then break end
      current, place = current - weight, place + ENTRY_BYTES
    end
    if place > bytes then return 0, 0, "" end
    return current, 0, place > 1 and sub(log, place) or log
  end
  if now - at >= ends_in(at, length, offset) then
    local next_one = now - elapsed(now, length, offset) == at + ends_in(at, length, offset)
    last, current = kind == COUNTER and next_one and current or 0, 0
  end
  return current, last, log
end

-- What counts now.
local function counted(kind, current, last, now, length, offset)
  if last == 0 then return current end
  local counts = ends_in(now, length, offset)
  if counts == length then return current + last end
  local part, rest = divide(counts, last, length, 0)
  return current + part + (rest > 0 and 1 or 0)
end

-- Counts what was spent at `when`.
local function add(kind, current, last, log, now, when, tokens, length, offset)
  if kind ~= LOG then
    local start = start_of(now, length, offset)
    if when >= start then
      current = least(current + tokens, TOKENS_MAX)
    elseif kind == COUNTER and when + ends_in(when, length, offset) == start then
      last = least(last + tokens, TOKENS_MAX)
    end
    return current, last, log
  end
  if tokens > TOKENS_MAX - current then tokens = TOKENS_MAX - current end
  local step = floor((length + 1023) / 1024)
  local over = fmod(when, step)
  if over > 0 then when = least(when + (step - over), NEVER) end
  if tokens == 0 or now - when >= length then return current, last, log end
  -- Most often at the end: what ended in the past is the exception.
  local place, after, weight = #log, false, 0
  while place > 0 and not after do
    local there, its = unpack(ENTRY, log, place - ENTRY_BYTES + 1)
    if there <= when then
      after = place
      if there == when then after, weight = place - ENTRY_BYTES, its end
    else
      place = place - ENTRY_BYTES
    end
  end
  log = sub(log, 1, after or 0) .. pack(ENTRY, when, weight + tokens) .. sub(log, place + 1)
  if #log > ENTRIES_MAX * ENTRY_BYTES then
    local _, oldest, there, its = unpack(TWO_ENTRIES, log)
    log = pack(ENTRY, there, oldest + its) .. sub(log, 2 * ENTRY_BYTES + 1)
  end
  return current + tokens, last, log
end

-- Takes back up to so many of those that were spent no earlier than `fresh`.
local function take_back(kind, current, log, now, fresh, tokens, length, offset)
  if kind ~= LOG then
    if fresh >= start_of(now, length, offset) then
      current = current > tokens and current - tokens or 0
    end
    return current, log
  end
  if now - fresh >= length or tokens == 0 then return current, log end
  local kept = {}
  for place = 1, #log, ENTRY_BYTES do
    local when, weight = unpack(ENTRY, log, place)
    if when >= fresh then
      local some = least(weight, tokens)
      current, tokens, weight = current - some, tokens - some, weight - some
    end
    if weight > 0 then kept[#kept + 1] = pack(ENTRY, when, weight) end
  end
  return current, table.concat(kept)
end

-- All entries, so much earlier.
local function shift_back(log, shift)
  local moved = {}
  for place = 1, #log, ENTRY_BYTES do
    local when, weight = unpack(ENTRY, log, place)
    moved[#moved + 1] = pack(ENTRY, when > shift and when - shift or 0, weight)
  end
  return table.concat(moved)
end

-- Of a last window with this count, so much time may be left where no more than `room` of it counts.
local function left(last, room, length)
  if room >= last then return length end
  local time = divide(room, length, last, 0)
  return time
end

-- The time until at most `room` is counted.
local function time_until(kind, current, last, log, now, room, length, offset)
  if kind == LOG then
    local place, when, weight = 1, false, 0
    while current > room and place <= #log do
      when, weight = unpack(ENTRY, log, place)
      current, place = current - weight, place + ENTRY_BYTES
    end
    return when and when - now + length or 0
  end
  if counted(kind, current, last, now, length, offset) <= room then return 0 end
  local over = ends_in(now, length, offset)
  if kind == FIXED then return over end
  if room >= current then return over - left(last, room - current, length) end
  return over + (length - left(current, room, length))
end

-- The time until `cost` could be had, if nothing were added and nothing that is lent were told about.
local function wait_in(kind, current, last, log, now, room, earliest, length, offset)
  if room >= 0 then return time_until(kind, current, last, log, now, room, length, offset) end
  if kind == FIXED then return ends_in(now, length, offset) end
  local span = time_until(kind, current, last, log, now, 0, length, offset)
  if earliest < NEVER and earliest - now > span then span = earliest - now end
  return span > 1 and span or 1
end

