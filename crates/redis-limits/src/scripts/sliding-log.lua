-- KEYS[1]: a list of the instants at which units were passed, the oldest first. ARGV: N, T in microseconds, cost, 1 to
-- charge. Returns as fixed-window.lua.
local most, window, cost, charges = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local log = redis.call('LRANGE', KEYS[1], 0, -1)
-- A clock that was set back frees nothing and keeps the order.
local at = math.max(now, tonumber(log[#log]) or 0)
local gone = 0
while gone < #log and at - tonumber(log[gone + 1]) > window do
  gone = gone + 1
end
local count = #log - gone
local passes = cost == 0 or cost <= most - count
local wait = 0
if cost > most then
  wait = -1
elseif not passes then
  -- Until so many of the oldest have left that the cost fits.
  wait = tonumber(log[gone + count + cost - most]) + window + 1 - at
end
if passes and charges and cost > 0 then
  if gone > 0 then
    redis.call('LTRIM', KEYS[1], gone, -1)
  end
  local instants, stamp = {}, string.format('%.0f', at)
  for unit = 1, cost do
    instants[unit] = stamp
  end
  redis.call('RPUSH', KEYS[1], unpack(instants))
  redis.call('PEXPIRE', KEYS[1], math.ceil(window / 1000) + 1)
  count = count + cost
end
return {passes and 1 or 0, most - count, wait, now}
