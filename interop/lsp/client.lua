-- Opens site.conf, which nginx.conf includes, and checks what the server answers.
local dir = vim.env.FOREBAY_DIR
local failed = false

local function check(what, holds, seen)
  print((holds and 'ok    ' or 'FAILED ') .. what .. (holds and '' or ': ' .. vim.inspect(seen)))
  failed = failed or not holds
end

local client = vim.lsp.start_client({ name = 'forebay', cmd = { vim.env.FOREBAY, 'lsp' }, root_dir = dir })
vim.cmd('edit ' .. dir .. '/site.conf')
local buffer = vim.api.nvim_get_current_buf()
vim.lsp.buf_attach_client(buffer, client)

local function ask(method, params)
  local answers = vim.lsp.buf_request_sync(buffer, method, params, 10000) or {}
  for _, answer in pairs(answers) do return answer.result end
end

local function at(line, column, more)
  return vim.tbl_extend('force', {
    textDocument = { uri = vim.uri_from_bufnr(buffer) }, position = { line = line, character = column },
  }, more or {})
end

local function messages()
  return table.concat(vim.tbl_map(function(d) return d.message end, vim.diagnostic.get(buffer)), '\n')
end

local found = vim.wait(10000, function() return messages():find('retrun') ~= nil end, 20)
check('diagnostics', found, messages())
local hover = ask('textDocument/hover', at(1, 6))
check('hover', hover and hover.contents.value:find('%*%*listen%*%*') ~= nil, hover)
local where = ask('textDocument/definition', at(3, 37))
check('definition', where and where[1] and where[1].uri:find('nginx.conf$') ~= nil, where)
local edit = ask('textDocument/rename', at(3, 37, { newName = 'backend' }))
check('rename', edit and vim.tbl_count(edit.changes) == 2, edit)
vim.lsp.util.apply_workspace_edit(edit, 'utf-16')
check('the rename is applied', vim.api.nvim_buf_get_lines(buffer, 3, 4, false)[1]:find('http://backend;', 1, true) ~= nil,
  vim.api.nvim_buf_get_lines(buffer, 0, -1, false))
local range = { start = { line = 2, character = 4 }, ['end'] = { line = 2, character = 4 } }
local actions = ask('textDocument/codeAction', { textDocument = at(0, 0).textDocument, range = range, context = { diagnostics = {} } })
check('fixes', actions and #actions > 0, actions)
vim.api.nvim_buf_set_lines(buffer, 4, 5, false, { 'location /b { return 200 $ho' , '}' })
local items = ask('textDocument/completion', at(4, 28))
local labels = vim.tbl_map(function(i) return i.label end, items and items.items or items or {})
check('completion', vim.tbl_contains(labels, 'host') and vim.tbl_contains(labels, 'hostname'), labels)
vim.api.nvim_buf_set_lines(buffer, 4, 6, false, { 'location /b { return 200; }' })
local edits = ask('textDocument/formatting', { textDocument = at(0, 0).textDocument, options = { tabSize = 4, insertSpaces = true } })
check('formatting', edits and edits[1] and edits[1].newText:find('\n    location /b {\n') ~= nil, edits)
vim.lsp.stop_client(client)
vim.wait(2000, function() return not vim.lsp.get_client_by_id(client) end, 20)
print()
vim.cmd(failed and 'cquit 1' or 'qall!')
