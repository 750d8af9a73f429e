-- wrk: PUT of 100-byte values under 100,000 keys in turn.
-- The requests are made once, before the run, so that wrk's own cost stays that of a GET.
local KEYS = 100000
local requests = {}
local next_request = 0

function init(args)
  local body = string.rep("v", 100)
  for i = 0, KEYS - 1 do
    requests[i] = wrk.format("PUT", string.format("/v0/entity?id=key-%012d", i), nil, body)
  end
end

function request()
  local text = requests[next_request]
  next_request = (next_request + 1) % KEYS
  return text
end
