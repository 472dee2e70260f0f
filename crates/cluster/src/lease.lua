-- One host asks for its share of one limit. Everything is decided here, at once and by this store's clock.
--
-- The function is that of ledger.rs, step by step; a test holds the two equal. Numbers are whole and below 2^53, or are
-- computed by the same operations in the same order, so that both sides round alike.
--
-- KEYS[1]  the ledger, a hash: '#...' what is known of all, 'n:<host>' one host as "held demand sequence share"; of a zone,
--          '#zone' has the zone's share of the limit (zone.lua)
-- KEYS[2]  when each host's lease runs out, a sorted set, in milliseconds of the ledger's clock
-- ARGV     host, sequence, applied, demand, units, lease (ms), epoch, 1 if it leaves, the host that it replaces or '';
--          of the grant that it applies, or 0: sequence, the ledger's clock (ms), how long ago it was asked for (ms);
--          1 if the ledger is that of a zone
-- Returns  share, hosts, epoch, 1 while nobody may grow, held, demand, target, the ledger's clock (ms), what all shares add
--          up to at most, the zones; or the sequence alone if a later request was there before, or the zone has no share yet
local WHOLE, FORGOTTEN = 1000000000, 100
local ledger, expiries = KEYS[1], KEYS[2]
local host, sequence, applied, wanted = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local units, lease, known, leaves = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == '1'
local former, acknowledged, granted, elapsed = ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local is_zones = ARGV[13] == '1'

local time = redis.call('TIME')
local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
local clock = math.floor(micros / 1000)
local function whole(number) return string.format('%.0f', number) end
local function entry_of(name)
  local text = redis.call('HGET', ledger, 'n:' .. name)
  if not text then return 0, 0, 0 end
  local held, demand, last = string.match(text, '^(%d+) (%d+) (%d+)')
  return tonumber(held), tonumber(demand), tonumber(last)
end

local own_held, own_demand, own_sequence = entry_of(host)
if own_sequence >= sequence then return { sequence } end

local head = redis.call('HMGET', ledger, '#epoch', '#clock', '#offset', '#quiet', '#held', '#demand')
for nth = 1, 6 do head[nth] = tonumber(head[nth] or '0') end
local epoch, last, offset, quiet, held, demand = head[1], head[2], head[3], head[4], head[5], head[6]
local now = clock + offset
if epoch == 0 then
  -- A ledger that is new while hosts remember another: the store was emptied, and they still hold their shares.
  epoch = micros
  if known ~= 0 then quiet = math.max(quiet, now + lease) end
else
  if now < last then
    -- The store's clock was set back: the ledger's goes on.
    offset = offset + last - now
    now = last
  elseif now - last > lease and redis.call('ZCARD', expiries) > 0 then
    -- No host requested a lease, or the clock was set forward: the next hosts report the units that are granted.
    quiet = math.max(quiet, now + lease)
  end
  if known ~= 0 and known ~= epoch then quiet = math.max(quiet, now + lease) end
  -- A grant that the store has lost: a replica that lagged took over. Or a clock that was set forward, by so much that
  -- leases which last still may have ended here.
  if acknowledged ~= 0 and (own_sequence < acknowledged or 2 * (now - granted - elapsed) > lease) then
    quiet = math.max(quiet, now + lease)
  end
end

-- The shares of a zone's hosts add up to the zone's; after its end, to what the zone may have without the other zones.
local all, zones = WHOLE, 1
if is_zones and not leaves then
  local zone = redis.call('HGET', ledger, '#zone')
  if not zone then return { sequence } end
  local part, ends, alone, grows, count = string.match(zone, '^(%d+) (%d+) (%d+) (%d+) (%d+) ')
  all, zones, alone = tonumber(part), tonumber(count), tonumber(alone)
  if now >= tonumber(ends) and (alone <= all or now >= tonumber(grows)) then all = alone end
end

-- The first command that writes needs memory: a store without memory refuses it, and nothing is changed. After another
-- write, Redis would continue the script, and grant what hosts that it cannot hear still hold.
redis.call('HSET', ledger, '#clock', whole(now))

-- The leases that ran out: what they held is free.
local ended = redis.call('ZRANGEBYSCORE', expiries, '-inf', whole(now), 'LIMIT', 0, FORGOTTEN)
-- The host that this one replaces has ended, and so has its lease.
if former ~= '' then ended[#ended + 1] = former end
for _, name in ipairs(ended) do
  local its_share, its_demand = entry_of(name)
  held = held - its_share
  demand = demand - its_demand
  redis.call('HDEL', ledger, 'n:' .. name)
  redis.call('ZREM', expiries, name)
end

own_held, own_demand = entry_of(host)
held = held - own_held
demand = demand - own_demand

local share, target = 0, 0
if leaves then
  redis.call('HDEL', ledger, 'n:' .. host)
  redis.call('ZREM', expiries, host)
else
  held = held + applied
  demand = demand + wanted
  redis.call('ZADD', expiries, whole(now + lease), host)
  local hosts = redis.call('ZCARD', expiries)
  -- In proportion to demand, but for what is spare: half of it is split evenly, ahead of need.
  local spare = math.max((all - demand) / 2, math.floor(all / 100))
  if demand == 0 then
    target = math.floor(all / hosts)
  else
    target = math.floor(wanted / demand * (all - spare) + spare / hosts)
  end
  local room = all - held
  -- A share that hardly shrinks stays: every move costs what is on its way.
  if target < applied and target * 16 >= applied * 15 and room >= 0 then target = applied end
  if room > 0 and now < quiet then room = 0 end
  -- In whole units, since less than one lets nothing pass; what is left over goes to who wants it and comes first.
  local unit = math.max(1, math.floor(WHOLE / units))
  local count = wanted > 0 and math.ceil(target / unit) or math.floor(target / unit)
  target = math.min(count * unit, math.floor(all / unit) * unit)
  share = math.min(target, math.max(0, applied + room))
  share = math.floor(share / unit) * unit
  -- Until the host has said that it holds less, it may hold what it held.
  local holds = math.max(applied, share)
  held = held + holds - applied
  redis.call('HSET', ledger, 'n:' .. host, whole(holds) .. ' ' .. whole(wanted) .. ' ' .. whole(sequence) .. ' ' .. whole(share))
end
redis.call('HSET', ledger, '#epoch', whole(epoch), '#clock', whole(now), '#offset', whole(offset), '#quiet', whole(quiet),
  '#held', whole(held), '#demand', whole(demand))
-- A ledger that nobody asks for is forgotten.
local keep = math.max(60000, 60 * lease)
redis.call('PEXPIRE', ledger, keep)
redis.call('PEXPIRE', expiries, keep)
return { share, redis.call('ZCARD', expiries), epoch, now < quiet and 1 or 0, held, demand, target, now, all, zones }
