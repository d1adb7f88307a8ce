/* kvcobra: the entry of the command. All other code is in libraries that the tests link too. */
#include "tools/command/command.h"

int main(int argc, char **argv)
{
    return commands_main(argc, argv);
}
