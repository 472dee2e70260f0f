-- One host of a zone asks to lead it for one limit, or goes on to: it writes the zone's share into the zone's ledger.
--
-- The function is that of ledger/lead.rs, step by step; a test holds the two equal.
--
-- KEYS[1]  the zone's ledger (lease.lua): '#lead' is who leads, as "ends host"; '#zone' the zone's share, as "share ends alone
--          grows zones sequence epoch member". Instants are milliseconds of the ledger's clock
-- ARGV     host, how long the lead lasts (ms; 0 ends it), the length of a host's lease (ms), 1 if the host has seen a share of
--          the zone; with a share: the eight parts of '#zone'
-- Returns  1 if the host leads, held, demand, 1 while hosts may hold what the ledger lacks, the ledger's clock (ms), '#zone' as
--          it was before, or ''
local TERM = 1000
local ledger, host, lasts, lease, has_seen = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local sequence = tonumber(ARGV[10])
local time = redis.call('TIME')
local clock = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
local function whole(number) return string.format('%.0f', number) end

local head = redis.call('HMGET', ledger, '#clock', '#offset', '#quiet', '#held', '#demand', '#lead', '#zone')
for nth = 1, 5 do head[nth] = tonumber(head[nth] or '0') end
local now = math.max(clock + head[2], head[1])
local zone = head[7] or ''
local ends, leader = string.match(head[6] or '', '^(%d+) (.+)$')
local is_led = ends and tonumber(ends) > now
local is_own = is_led and leader == host

-- One command writes, which a store without memory refuses.
local fields, written = {}, 0
if zone ~= '' then
  local before, number, after = string.match(zone, '^(%d+ %d+ %d+ %d+ %d+ )(%d+)( .+)$')
  written = tonumber(number)
  -- What the previous lead has still under way is refused.
  if not is_led and lasts > 0 then
    written = written + TERM
    zone = before .. whole(written) .. after
    fields = { '#zone', zone }
  end
end
local reply = { 0, head[4], head[5], now < head[3] and 1 or 0, now, zone }
local is_late = sequence and sequence <= written
local is_lost = zone == '' and not sequence and has_seen
if not (is_led and not is_own) and not (lasts > 0 and (is_late or is_lost)) then
  if lasts == 0 then
    redis.call('HDEL', ledger, '#lead')
  else
    reply[1] = 1
    if sequence then
      fields = { '#zone', table.concat(ARGV, ' ', 5, 12) }
      -- The ledger has lost a share, and perhaps those of hosts.
      if sequence > written + 1 then
        fields[3], fields[4] = '#quiet', whole(math.max(head[3], now + lease))
      end
    end
    fields[#fields + 1] = '#lead'
    fields[#fields + 1] = whole(now + lasts) .. ' ' .. host
  end
end
if #fields > 0 then
  redis.call('HSET', ledger, unpack(fields))
  redis.call('PEXPIRE', ledger, math.max(60000, 60 * lease))
end
return reply
