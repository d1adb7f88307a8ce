/* kvcobra-lab: the entry of the command. All other code is in libraries that the tests link too. */
#include "base/entry.h"
#include "lab/lab.h"

int main(int argc, char **argv)
{
    entry_prepare(ENTRY_PIPES_KILL);
    return lab_main(argc, argv);
}
