-- floor((a * b + add) / c) and the remainder, exact, where a < c < 2^51 or the sum is below 2^53.
local function divide(a, b, c, add)
  local n = a * b + add
  if n < NEVER then
    local q = floor(n / c)
    return q, n - q * c
  end
  -- Long multiplication, 7 bits of b at a time, or one where c is large: no number here reaches c * (2 * base).
  local base = c < 35184372088832 and 128 or 2
  local place, q, r = 1, 0, 0
  while place * base <= b do place = place * base end
  while place >= 1 do
    local digit = floor(b / place)
    b = b - digit * place
    n = r * base + a * digit
    local more = floor(n / c)
    q, r = q * base + more, n - more * c
    place = place / base
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

