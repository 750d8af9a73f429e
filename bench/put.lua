-- wrk: PUT of 100-byte values under 100,000 keys in turn.
-- The requests are made once, before the run, so that wrk's own cost stays that of a GET.
--
-- Arguments behind `--`, all optional: [QUERY [SHARES SHARE]]
--   QUERY   put behind the key, as in '&replicas=2/3'
--   SHARES  how many wrks divide the keys among them, so that no two write one key at once
--   SHARE   which share is this one's, from 0
local KEYS = 100000
local requests = {}
local count = 0
local next_request = 0

function init(args)
  local query = args[1] or ""
  local shares = tonumber(args[2] or 1)
  local share = tonumber(args[3] or 0)
  local body = string.rep("v", 100)
  for i = share, KEYS - 1, shares do
    requests[count] = wrk.format("PUT", string.format("/v0/entity?id=key-%012d%s", i, query), nil, body)
    count = count + 1
  end
end

function request()
  local text = requests[next_request]
  next_request = (next_request + 1) % count
  return text
end
