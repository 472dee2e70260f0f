-- KEYS[1]: a hash of the window's number, what was passed in it, and in the one before. ARGV: N, T in microseconds,
-- cost, 1 to charge. Windows are aligned to multiples of T. Returns as fixed-window.lua.
local most, window, cost, charges = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local number = math.floor(now / window)
local elapsed = now - number * window
local held = redis.call('HMGET', KEYS[1], 'number', 'count', 'before')
local then_number, count, before = tonumber(held[1]) or -2, tonumber(held[2]) or 0, tonumber(held[3]) or 0
if then_number > number then
  -- A clock that was set back opens no window again: this instant belongs to the last one's start.
  number, elapsed = then_number, 0
elseif then_number == number - 1 then
  count, before = 0, count
elseif then_number < number then
  count, before = 0, 0
end
local left = window - elapsed

-- Within a window of which `left` remains: passes once count + cost - 1 + before * share in view < N.
local function wait_within(count, before, left)
  local free = most - (count + cost - 1)
  if free <= 0 then
    return nil
  end
  if before == 0 then
    return 0
  end
  local wait = math.max(0, left - math.floor((free * window - 1) / before))
  return wait < left and wait or nil
end

local wait = 0
if cost > most then
  wait = -1
elseif cost > 0 then
  wait = wait_within(count, before, left)
  if not wait then
    -- In the next window, where what this one passed is weighed; else in the one after, where nothing is.
    wait = left + (wait_within(0, count, window) or window)
  end
end
local passes = wait == 0
if passes and charges and cost > 0 then
  count = count + cost
  redis.call('HSET', KEYS[1], 'number', string.format('%.0f', number), 'count', string.format('%.0f', count),
    'before', string.format('%.0f', before))
  redis.call('PEXPIRE', KEYS[1], math.ceil((left + window) / 1000) + 1)
end
local remaining = 0
if before * left + count * window < most * window then
  remaining = most - count - math.floor(before * left / window)
end
return {passes and 1 or 0, remaining, wait, now}
