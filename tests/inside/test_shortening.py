"""Scripts lose what only readers need, and nothing else."""

from __future__ import annotations

import pytest

from headway.inside.page.shortening import shorter, shorter_style


@pytest.mark.parametrize(
    ("source", "short"),
    [
        ("const a = 1;  // one\nconst b = 2;\n", "let a=1,b=2;"),
        ("let a = 1;\nlet { b } = c;\nd();\nlet e;", "let a=1,{b}=c;d();let e;"),
        ("for (let i = 0; i < n; i++) f();\nlet b;", "for(let i=0;i<n;i++)f();let b;"),
        ("let a = () => { let b = 1; f(); };\nlet c;", "let a=()=>{let b=1;f()},c;"),
        ("let a = {}\nf();\nlet b;", "let a={}\nf();let b;"),
        ("if (a) { b(); } let c; if (d) e(); let f;", "if(a){b()}let c;if(d)e();let f;"),
        ("f({\n  a, b,\n}, [, ]);", "f({a,b},[,]);"),
        ("f( 'a  b', \"c // d\" )", "f('a  b',\"c // d\")"),
        ("x = `a  ${ b + `in  ${ c } ner` }  // d`", "x=`a  ${b+`in  ${c} ner`}  // d`"),
        ("t.replace( /[\"/ ]+/g, '' ) / 2", "t.replace(/[\"/ ]+/g,'')/2"),
        ('y = `"${ s.replace(/"/g, "`") } "`; z = 1', 'y=`"${s.replace(/"/g,"`")} "`;z=1'),
        ("a + +b - -c", "a+ +b- -c"),
        ("let a = b\nlet c = d", "let a=b\nlet c=d"),
        ("f(a,\n  b)\n  .then( c )", "f(a,b).then(c)"),
        ("return a\n/* gone\n*/ in b", "return a\nin b"),
        ("if (a) { b(); }\nc();", "if(a){b()}\nc();"),
        ("a.map((x) => x + '(y) => z');", "a.map(x=>x+'(y) => z');"),
        ("return (x) =>\n  async (y) => ({ x, y })", "return x=>async y=>({x,y})"),
        ("(a, b) => f((c) / 2)", "(a,b)=>f((c)/2)"),
        ("typeof x === 'a'", "typeof x==='a'"),
    ],
)
def test_only_comments_and_idle_spaces_go(source: str, short: str) -> None:
    assert shorter(source) == short


def test_a_script_that_does_not_parse_stays_for_the_browser_to_complain_about() -> None:
    assert shorter("x = `no end ${ a ") == "x = `no end ${ a "


def test_style_keeps_its_meaning() -> None:
    source = (
        "/* why */\na b,\n.c > d {\n  color: red; margin: 0 1px;\n}\n@media print { e { f: g; } }\n"
    )
    short = "a b,.c > d{color: red;margin: 0 1px}@media print{e{f: g}}"
    assert shorter_style(source) == short
