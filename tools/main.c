/* kvcobra: the entry of the command. All other code is in libraries that the tests link too. */
#include "base/entry.h"
#include "tools/command/command.h"

int main(int argc, char **argv)
{
    entry_prepare(ENTRY_PIPES_KILL);
    return commands_main(argc, argv);
}
