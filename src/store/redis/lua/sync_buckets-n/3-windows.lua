-- What counts in windows. Twins: src/algorithm/frame.rs, fixed_window.rs, sliding_log.rs, sliding_counter.rs.
-- A state is `current` (what is counted; of a log the sum of its weights), `last` (counters only) and `log`.

-- How far into its window a time is, when that began, and how long until it ends.
local function elapsed(at, length, offset)
  if offset == 0 then return fmod(at, length) end
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

-- A log keeps its entries in pieces, each a field of its own: a long string is dear to make, and most messages only take
-- from the first piece and add to the last. Pieces are read when they are needed.
local function open_log(key, first, last, entries)
  return { key = key, first = first, last = last, entries = entries, pieces = {}, changed = {}, gone = {} }
end

local function read_piece(log, number)
  local piece = log.pieces[number]
  if not piece then
    piece = call("HGET", log.key, PIECE .. number)
    if not piece or piece == "" or #piece % ENTRY_BYTES ~= 0 then broken("log") end
    log.pieces[number] = piece
  end
  return piece
end

local function write_piece(log, number, piece)
  log.pieces[number], log.changed[number], log.gone[number] = piece, true, nil
end

local function drop_piece(log, number)
  log.pieces[number], log.changed[number], log.gone[number] = nil, nil, true
end

local function clear_log(log)
  for number = log.first, log.last do drop_piece(log, number) end
  log.first, log.entries = log.last + 1, 0
end

-- Lets what has left leave.
local function advance(kind, current, last, log, at, now, length, offset)
  if kind == LOG then
    while log.first <= log.last do
      local piece, place = read_piece(log, log.first), 1
      while place < #piece do
        local when, weight = unpack(ENTRY, piece, place)
        if now - when < length then
          if place > 1 then write_piece(log, log.first, sub(piece, place)) end
          return current, 0, log
        end
        current, place, log.entries = current - weight, place + ENTRY_BYTES, log.entries - 1
      end
      drop_piece(log, log.first)
      log.first = log.first + 1
    end
    return 0, 0, log
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

-- Notes so much at `when` in a log.
local function note(log, when, tokens)
  local entry = pack(ENTRY, when, tokens)
  -- Most often at the end: what ended in the past is the exception.
  for number = log.last, log.first, -1 do
    local piece = read_piece(log, number)
    for place = #piece, 1, -ENTRY_BYTES do
      local there, weight = unpack(ENTRY, piece, place - ENTRY_BYTES + 1)
      if there == when then
        entry = pack(ENTRY, when, weight + tokens)
        return write_piece(log, number, sub(piece, 1, place - ENTRY_BYTES) .. entry .. sub(piece, place + 1))
      end
      if there < when then
        log.entries = log.entries + 1
        if number == log.last and place == #piece and place >= PIECE_BYTES then
          log.last = log.last + 1
          return write_piece(log, log.last, entry)
        end
        return write_piece(log, number, sub(piece, 1, place) .. entry .. sub(piece, place + 1))
      end
    end
    if number == log.first then
      log.entries = log.entries + 1
      return write_piece(log, number, entry .. piece)
    end
  end
  log.last, log.entries = log.first, 1
  write_piece(log, log.last, entry)
end

-- Makes one entry of the two oldest.
local function merge_oldest(log)
  local piece = read_piece(log, log.first)
  local _, oldest = unpack(ENTRY, piece)
  piece = sub(piece, ENTRY_BYTES + 1)
  if piece == "" then
    drop_piece(log, log.first)
    log.first = log.first + 1
    piece = read_piece(log, log.first)
  end
  local when, weight = unpack(ENTRY, piece)
  write_piece(log, log.first, pack(ENTRY, when, oldest + weight) .. sub(piece, ENTRY_BYTES + 1))
  log.entries = log.entries - 1
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
  tokens = least(tokens, TOKENS_MAX - current)
  local step = floor((length + 1023) / 1024)
  local over = fmod(when, step)
  if over > 0 then when = least(when + (step - over), NEVER) end
  if tokens == 0 or now - when >= length then return current, last, log end
  note(log, when, tokens)
  if log.entries > ENTRIES_MAX then merge_oldest(log) end
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
  if now - fresh >= length or tokens == 0 or log.first > log.last then return current, log end
  -- From the piece with the oldest of them on, all is written anew.
  local from = log.last
  while from > log.first and unpack(ENTRY, read_piece(log, from)) >= fresh do from = from - 1 end
  local kept, number = {}, from
  for old = from, log.last do
    local piece = read_piece(log, old)
    for place = 1, #piece, ENTRY_BYTES do
      local when, weight = unpack(ENTRY, piece, place)
      if when >= fresh then
        local some = least(weight, tokens)
        current, tokens, weight = current - some, tokens - some, weight - some
      end
      if weight > 0 then
        kept[#kept + 1] = pack(ENTRY, when, weight)
      else
        log.entries = log.entries - 1
      end
    end
  end
  local in_piece = PIECE_BYTES / ENTRY_BYTES
  for i = 1, #kept, in_piece do
    write_piece(log, number, table.concat(kept, "", i, least(i + in_piece - 1, #kept)))
    number = number + 1
  end
  for old = number, log.last do drop_piece(log, old) end
  log.last = number - 1
  return current, log
end

-- All entries, so much earlier.
local function shift_back(log, shift)
  for number = log.first, log.last do
    local piece, moved = read_piece(log, number), {}
    for place = 1, #piece, ENTRY_BYTES do
      local when, weight = unpack(ENTRY, piece, place)
      moved[#moved + 1] = pack(ENTRY, when > shift and when - shift or 0, weight)
    end
    write_piece(log, number, table.concat(moved))
  end
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
    if log.first > log.last or current <= room then return 0 end
    if room <= 0 then -- the newest decides
      local piece = read_piece(log, log.last)
      return unpack(ENTRY, piece, #piece - ENTRY_BYTES + 1) - now + length
    end
    for number = log.first, log.last do
      local piece = read_piece(log, number)
      for place = 1, #piece, ENTRY_BYTES do
        local when, weight = unpack(ENTRY, piece, place)
        current = current - weight
        if current <= room then return when - now + length end
      end
    end
    broken("log")
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

