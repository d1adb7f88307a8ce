/* See other_user_fixture.h. */
#include "tests/e2e/other_user_fixture.h"

#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/lib/test.h"

bool other_user_is_possible(void)
{
    if (geteuid() == 0)
        return true;

    test_skip("only root can become another user");
    return false;
}

void other_user_become(uid_t uid)
{
    assert(setgroups(0, NULL) == 0);
    assert(setgid(uid) == 0);
    assert(setuid(uid) == 0);
    assert(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0); /* the kernel clears it when the user changes */
}
