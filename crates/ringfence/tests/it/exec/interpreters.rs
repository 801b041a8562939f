//! Ways by the first line of a script.

use super::ways;

ways! { Program:
    as_an_interpreter "printf '#!%s --version\\n' $1 >x; chmod +x x; ./x";
    as_an_interpreter_of_an_interpreter "printf '#!%s --version\\n' $1 >a; printf '#!%s/a\\n' $PWD >b; chmod +x a b; ./b";
    as_an_interpreter_by_a_link "ln -s $1 l; printf '#!%s/l --version\\n' $PWD >x; chmod +x x; ./x";
    as_an_interpreter_by_a_copy "cp $1 l; printf '#!%s/l --version\\n' $PWD >x; chmod +x x; ./x";
    by_env_in_the_first_line "printf '#!/usr/bin/env -S %s --version\\n' $2 >x; chmod +x x; ./x";
    in_a_script "printf '#!/bin/sh\\n%s --version\\n' $1 >x; chmod +x x; ./x";
    in_a_script_without_a_first_line "printf '%s --version\\n' $1 >x; chmod +x x; ./x";
}
