--[[ sync_buckets-n: applies one message of the lease protocol to each of n buckets or windows.
  KEYS[i]    bucket       hash: "h" -> header, 8 bytes of an instance's id -> its record, and "entries:1", "entries:2" ...
                          -> the entries of a log, in pieces; all packed, see HEADER, RECORD, ENTRY
  ARGV[1]    now          µs; 0 asks the server's clock
  ARGV[i+1]  message      packed, see MESSAGE; every number within the bounds of book/bounds.rs
  returns    an answer for each bucket: packed, see ANSWER,
             or "E" and the reason, when that bucket alone failed
  twin: src/lease/book.rs, step by step. Numbers are whole, and exact in doubles: below 2^53.
  The script is the four files of this folder one after the other, in the order of their names. ]]
local call, pack, unpack, spread = redis.call, struct.pack, struct.unpack, unpack
local floor, fmod, format, sub = math.floor, math.fmod, string.format, string.sub

-- flags (1 look, 2 start full when lost, 4 * kind, 32 an order follows), instance, generation, draw, revision, rate
-- (whole tokens a µs, and part / period), burst, epoch, seq, born, not_after, used, hold, age, need (cost, count), want,
-- demand, span, debt and outage (sum, acked)
-- windows add: length, offset, window, fresh; an order adds: how long to block, or -1 to clear
local MESSAGE, FRAMED, ORDER = "<Bc8ddddddddddddddddddddddd", "<dddd", "<d"
-- version + 16 * kind, tokens, rem, at, out, demand, earliest, latest, generation, policy_done, revision, whole, part,
-- period, burst; of windows tokens is what is counted (in the present window) and rem what was in the last one
-- windows add: length, offset; a log adds: number of its first and its last piece, entries; a block adds: until when
local HEADER, HEADER_BYTES = "<Bdddddddddddddd", 113
local FRAME, FRAME_BYTES, PIECES, PIECES_BYTES, BLOCK, BLOCK_BYTES = "<dd", 16, "<ddd", 24, "<d", 8
-- version, epoch, seq, used, out, end, demand, debt, outage, born
local RECORD, RECORD_BYTES = "<Bddddddddd", 73
-- of a log, oldest first: time, weight
local ENTRY, ENTRY_BYTES, ENTRIES_MAX, PIECE_BYTES = "<dd", 16, 1025, 512
local PIECE = "entries:" -- and a number: never of 8 bytes, as the fields of instances are
-- outcome (0 applied, 1 late, 2 stale) + 4 lost + 8 numbers follow + 16 blocked + 32 window follows + 64 delay follows,
-- epoch, seq, now, generation, given, grant, free, retry_after, key_ttl
-- then, where they follow: window (start, ends_in); delay; numbers (revision, whole, part, period, burst, and of
-- windows length, offset)
local ANSWER, UNANSWERED, WINDOW, DELAY, NUMBERS = "<Bddddddddd", "<Bddd", "<dd", "<d", "<ddddd"
local VERSION = 1
-- Kinds: 0 token bucket, 1 leaky meter; and these, of which the last three are windows.
local QUEUE, FIXED, LOG, COUNTER = 2, 3, 4, 5

local NEVER, TOKENS_MAX, SUM_MAX = 9007199254740992, 1125899906842624, 4503599627370496
local JITTER_MAX, RECORD_KEPT, LOOK_EVERY = 1000000, 60000000, 250000
-- Fields of a record that was read with all others, as a table.
local OUT, END, DEMAND, CHANGED = 4, 5, 6, 10

