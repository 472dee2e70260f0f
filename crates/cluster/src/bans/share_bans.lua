-- One host publishes its new bans and removals, and reads what has changed since it last read.
--
-- KEYS[1]  bans, a hash: '#epoch', '#version', '#clock', and for each prefix '<kind> <end> <made> <host> <detail>'
-- KEYS[2]  the version at which each prefix last changed, a sorted set
-- KEYS[3]  when each prefix ends, a sorted set; prefixes without an end are not in it
-- ARGV     epoch, version at the last read, most prefixes to return, most to store, an epoch in case there is none,
--          then for each change: kind, prefix, age, duration (0: without an end), host, detail
-- Returns  the clock, the epoch, the version, the version from which it read, a result for each change,
--          {prefix, version, value, ...}
--
-- Kinds: B a ban by an operator, L one by a limit, U a removal. Times are milliseconds of the store's clock, which never
-- goes back while the hash is there. Results: 0 stored, 1 a later order stays, 2 a longer ban stays, 3 no room.
local bans, versions, ends = KEYS[1], KEYS[2], KEYS[3]
local page, most = tonumber(ARGV[3]), tonumber(ARGV[4])
local longest_removal, shortest_removal = 7 * 86400000, 60000
local function whole(number) return string.format('%.0f', number) end

local time = redis.call('TIME')
local head = redis.call('HMGET', bans, '#epoch', '#version', '#clock')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
now = math.max(now, tonumber(head[3] or '') or 0)
local epoch = head[1] or ARGV[5]
-- The newest change counts, too: another program may have removed the hash alone.
local newest = redis.call('ZRANGE', versions, -1, -1, 'WITHSCORES')
local version = math.max(tonumber(head[2] or '') or 0, tonumber(newest[2] or '') or 0)
local from = tonumber(ARGV[2])
-- A host that read a later version read another store, or one that has lost its last changes.
if ARGV[1] ~= epoch or from > version then from = 0 end

local function remove(prefix)
  redis.call('HDEL', bans, prefix)
  redis.call('ZREM', versions, prefix)
  redis.call('ZREM', ends, prefix)
end
for _, prefix in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', whole(now), 'LIMIT', 0, 1000)) do remove(prefix) end
local count = redis.call('ZCARD', versions)

-- The kind, end, time and host of a prefix's entry; nothing if there is none, or another program has written it.
local function entry(prefix)
  local value = redis.call('HGET', bans, prefix)
  local kind, ending, made, host = string.match(value or '', '^([BLU]) (%d+) (%d+) (%S+) ')
  if kind and #ending < 16 and #made < 16 then return kind, tonumber(ending), tonumber(made), host end
end

local function put(prefix, kind, ending, made, host, detail)
  version = version + 1
  redis.call('HSET', bans, prefix, table.concat({ kind, whole(ending), whole(made), host, detail }, ' '))
  redis.call('ZADD', versions, whole(version), prefix)
  if ending == 0 then
    redis.call('ZREM', ends, prefix)
  else
    redis.call('ZADD', ends, whole(ending), prefix)
  end
end

local function change(kind, prefix, age, duration, host, detail)
  local made, ending = math.max(now - age, 0), 0
  local known, known_end, known_made, known_host = entry(prefix)
  local has_room = known or count < most
  if known and known_made > made and (known == 'U' or kind == 'U') then return 1 end
  if kind == 'U' then
    -- Hosts that are away read it when they are back, as long as the removed ban would have lasted.
    ending = now + shortest_removal
    if known then
      ending = math.max(ending, known_end == 0 and now + longest_removal or math.min(known_end, now + longest_removal))
    end
    if not has_room then return 0 end
  else
    if duration > 0 then ending = now + duration end
    local is_longer = known_end == 0 or (ending ~= 0 and known_end and known_end >= ending)
    if known and known ~= 'U' and known_host ~= host and is_longer then return 2 end
    -- Limits leave a quarter of the room to operators.
    if not known and count >= (kind == 'L' and most * 3 / 4 or most) then return 3 end
  end
  if not known then count = count + 1 end
  put(prefix, kind, ending, made, host, detail)
  return 0
end

local results = {}
for nth = 6, #ARGV, 6 do
  results[#results + 1] =
    change(ARGV[nth], ARGV[nth + 1], tonumber(ARGV[nth + 2]), tonumber(ARGV[nth + 3]), ARGV[nth + 4], ARGV[nth + 5])
end
redis.call('HSET', bans, '#epoch', epoch, '#version', whole(version), '#clock', whole(now))

local changed = redis.call('ZRANGEBYSCORE', versions, '(' .. whole(from), '+inf', 'WITHSCORES', 'LIMIT', 0, page)
local news = {}
for nth = 1, #changed, 2 do
  local value = redis.call('HGET', bans, changed[nth])
  if not value then remove(changed[nth]) end
  news[#news + 1] = changed[nth]
  news[#news + 1] = changed[nth + 1]
  news[#news + 1] = value or ''
end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, longest_removal) end
return { whole(now), epoch, whole(version), whole(from), results, news }
