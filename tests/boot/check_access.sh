# Socket activation, and who is served.

in_machine useradd --create-home --groups kvcobra alice
in_machine useradd --create-home bob

check "access: stop" in_machine systemctl stop "$unit"
check "access: the sockets listen without the service" in_machine systemctl is-active kvcobrad.socket kvcobrad-operator.socket
expect "access: the service is stopped" 3 in_machine systemctl is-active "$unit"
check "access: a connection starts the service" in_machine kvcobra status
check "access: it runs" unit_is_up

check "access: a member of the group publishes" as_user alice pages publish "$model" 1
check_text "access: its tokens" "published 1024 tokens"
expect "access: another user is refused" 1 as_user bob pages publish "$model" 1
check_text "access: the sentence names the group" "group kvcobra"
expect "access: a member of the group is no operator" 1 as_user alice kvcobra clients
check_text "access: the sentence names the user who is" "root"
check "access: it sees its own tenant" as_user alice kvcobra status
check_text "access: and no other" "this user is no operator"
