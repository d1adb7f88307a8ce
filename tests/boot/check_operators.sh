# A group of operators, as kvcobrad-operator.socket and kvcobrad.conf(5) say.

configured=$(cat "$(at "$conf")")
in_machine groupadd cacheops
in_machine usermod --append --groups cacheops bob
check "operators: prompts are published" as_user alice pages publish "$model" 2
check "operators: read" read_pages before
expect "operators: bob is none yet" 1 as_user bob kvcobra clients

mkdir -p "$(at $unit_folder/kvcobrad-operator.socket.d)"
printf '%s\n' "[Socket]" "SocketGroup=cacheops" "SocketMode=0660" >"$(at $unit_folder/kvcobrad-operator.socket.d/group.conf)"
configure "$configured" "operator-group = cacheops"
in_machine systemctl daemon-reload
check "operators: restart of the socket and with it of the service" in_machine systemctl restart kvcobrad-operator.socket
check "operators: bob is one" as_user bob kvcobra clients
expect "operators: alice is none" 1 as_user alice kvcobra clients
check_text "operators: the sentence names the group" "group cacheops"
expect_same "operators: after that restart"

rm -r "$(at $unit_folder/kvcobrad-operator.socket.d)"
configure "$configured"
in_machine systemctl daemon-reload
check "operators: as it was" in_machine systemctl restart kvcobrad-operator.socket
expect "operators: bob is none any longer" 1 as_user bob kvcobra clients
