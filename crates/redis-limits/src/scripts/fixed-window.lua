-- KEYS[1]: a hash of the window's end and what was passed in it. ARGV: N, T in microseconds, cost, 1 to charge.
-- Returns whether it passes, what is left, microseconds until it would pass (-1: never), and the store's clock.
local most, window, cost, charges = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local held = redis.call('HMGET', KEYS[1], 'ends', 'count')
local ends, count = tonumber(held[1]) or 0, tonumber(held[2]) or 0
if now >= ends then
  ends, count = now + window, 0
end
local passes = cost <= most - count
local wait = 0
if cost > most then
  wait = -1
elseif not passes then
  wait = ends - now
end
if passes and charges and cost > 0 then
  count = count + cost
  redis.call('HSET', KEYS[1], 'ends', string.format('%.0f', ends), 'count', string.format('%.0f', count))
  redis.call('PEXPIRE', KEYS[1], math.ceil((ends - now) / 1000) + 1)
end
return {passes and 1 or 0, most - count, wait, now}
