# Mints tests/data/text/templates.json: snippets and chat prompts rendered by Jinja2 itself, set up as
# transformers sets it up for chat templates. Cases that must fail have null. Run once; see README.md.
# SPDX-License-Identifier: MIT
import json, sys
import jinja2, jinja2.ext, jinja2.sandbox

qwen3_template, demo_config, out_path = sys.argv[1:4]


class Generation(jinja2.ext.Extension):  # {% generation %} marks text for training; output is unchanged
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return body


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


ENV = environment()


def render(source, context):
    try:
        return ENV.from_string(source).render(**context)
    except Exception as error:  # any failure: the engine must fail too
        print("fails:", repr(source)[:90], "|", type(error).__name__, error, file=sys.stderr)
        return None


CONTEXT = {
    "a": 3, "b": 4, "x": 2.5, "neg": -7, "t": True, "f": False, "n": None, "s": "Hello World", "u": "äöü €😀 ß", "e": "",
    "l": [3, 1, 2], "words": ["pear", "Apple", "fig", "apple"], "d": {"one": 1, "two": "zwei", "Three": [1, {"k": None}]},
    "users": [{"name": "Bob", "age": 31, "on": True}, {"name": "alice", "age": 4, "on": False}, {"name": "Eve", "age": 31, "tags": ["x"]}],
    "ml": "line one\nline two\n\nlast", "html": "<a href=\"x\">'&'</a>", "nested": {"q": {"r": [10, 20]}}, "num": "42", "sp": "  padded\t\n",
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U1"}, {"role": "assistant", "content": "A1"}, {"role": "user", "content": "U2"}],
}

SNIPPETS = r"""
{{ a }} {{ x }} {{ t }} {{ n }} {{ s }} {{ missing }}|
{{ l }} {{ d }} {{ (1, 'a') }} {{ (1,) }} {{ () }} {{ u }} {{ [u, "it's", 'q"q', "b\\s", 'nl\n'] }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ neg // 2 }} {{ neg % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -a }} {{ +a }} {{ -2 ** 2 }}
{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 / 3 }} {{ 1e16 }} {{ 1e15 }} {{ 1.5e-7 }} {{ 0.1 + 0.2 }} {{ 100.0 }} {{ 1_000 }} {{ 4 / 2 }}
{{ true + 1 }} {{ 'a' * 3 }} {{ [1, 2] * 2 }} {{ 2 * 'xy' }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ 'a' ~ 1 ~ none ~ true ~ 2.0 }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 }} {{ true == 1 }} {{ '1' == 1 }} {{ none == false }} {{ (1, 2) == [1, 2] }}
{{ 'ell' in s }} {{ 'z' not in s }} {{ 3 in l }} {{ 'one' in d }} {{ not 3 in l }} {{ 1 in missing }} {{ 'k' in d.Three[1] }}
{{ t and 'x' or 'y' }} {{ f or e or 'last' }} {{ e and 1 }}| {{ not e }} {{ n or [] }} {{ t and f }}
{{ 'yes' if t else 'no' }} {{ 'yes' if f else 'no' }} {{ 'yes' if f }}| {{ 'a' if f else 'b' if f else 'c' }} {{ ('x' if t else 'y') + 'z' }}
{{ s[0] }} {{ s[-1] }} {{ s[1:4] }} {{ s[::-1] }} {{ s[::2] }} {{ s[-5:] }} {{ s[:-6] }} {{ s[99:] }}| {{ s[99] }}| {{ u[5:7] }} {{ u[::-1] }}
{{ l[0] }} {{ l[-1] }} {{ l[1:] }} {{ l[::-1] }} {{ l[5:] }} {{ l[-99:2] }} {{ l[::-2] }} {{ l[2:0:-1] }} {{ l[99] }}| {{ (1, 2, 3)[:2] }}
{{ d.one }} {{ d['two'] }} {{ d.Three.0 }} {{ d.Three[1].k }} {{ d.missing }}| {{ d['no'] }}| {{ nested.q.r[1] }} {{ nested['q']['r'].0 }}
{{ missing.x }}
{{ missing.x.y is defined }}
{{ d.nope.deeper }}
{{ n.x }}|
{{ missing + 'a' }}
{{ 'a' + 1 }}
{{ 1 / 0 }}
{{ missing() }}
{{ s.nope() }}
{{ l.append(4) }}
{{ 'x'|nofilter }}
{{ 1 is notest }}
{{ 1 < 'a' }}
{% if a > 2 %}big{% elif a > 1 %}mid{% else %}small{% endif %} {% if e %}1{% elif f %}2{% else %}3{% endif %} {% if missing %}x{% endif %}|
{% for i in l %}{{ i }},{% endfor %} {% for i in [] %}x{% else %}empty{% endfor %} {% for i in missing %}x{% else %}none{% endfor %} {% for c in 'añb' %}[{{ c }}]{% endfor %}
{% for i in l %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.depth }} {% endfor %}
{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %} {% for i in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}
{% for i in l %}{{ loop.cycle('odd', 'even') }} {% endfor %}{% for i in [1, 1, 2, 2, 1] %}{{ loop.changed(i) }} {% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {% for k in d %}{{ k }} {% endfor %} {% for k, v in d|items %}{{ k }} {% endfor %} {% for (a, (b, c)) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for u in users if u.on %}{{ loop.index }}{{ u.name }} {% else %}nobody{% endfor %} {% for u in users if u.age > 99 %}x{% else %}nobody{% endfor %}
{% for i in range(10) %}{% if i == 3 %}{% continue %}{% endif %}{% if i > 5 %}{% break %}{% endif %}{{ i }}{% endfor %} {% for i in range(2) %}{% for j in range(9) %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}
{% for x in [[1, [2, [3]]], [4]] recursive %}{% if x is sequence %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}
{% for i in range(5) %}{{ i }}{% endfor %} {{ range(2, 8, 3)|list }} {{ range(5, 0, -2)|list }} {{ range(0)|list }} {{ range(3)|length }}
{% set y = 5 %}{{ y }} {% set p, q = 1, 2 %}{{ p }}{{ q }} {% set z %}block {{ a }}{% endset %}{{ z }} {% set w | upper | trim %}  up {% endset %}[{{ w }}]
{% set v = 1 %}{% for i in l %}{% set v = i %}{{ v }}{% endfor %}{{ v }} {% if t %}{% set v = 9 %}{% endif %}{{ v }}
{% set ns = namespace(found=false, count=0) %}{% for i in l %}{% set ns.count = ns.count + i %}{% if i == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }} {{ ns.count }} {{ ns.nope }}|
{% set d.x = 1 %}
{% macro hello(name, greet='Hi', *args) %}{% endmacro %}
{% macro hello(name, greet='Hi') %}{{ greet }} {{ name }}!{% endmacro %}{{ hello('Bob') }} {{ hello('Al', greet='Yo') }} {{ hello(greet='X', name='Y') }} {{ hello() }}
{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }} {% set top = 7 %}{% macro g() %}{{ top }}{% endmacro %}{{ g() }} {{ g()|length }}
{% macro box() %}<{{ caller() }}>{% endmacro %}{% call box() %}in {{ a }}{% endcall %} {% macro each(xs) %}{% for x in xs %}{{ caller(x) }},{% endfor %}{% endmacro %}{% call(v) each(l) %}{{ v * a }}{% endcall %}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
{% filter upper %}abc {{ s }}{% endfilter %} {% with q = 3, r = a %}{{ q + r }}{% endwith %}{{ q }}|
{% generation %}gen {{ a }}{% endgeneration %} {% raw %}{{ not }} {% if %}{% endraw %} {# comment {{ a }} #}end
{{ raise_exception('no way') }}
{{ s|upper }} {{ s|lower }} {{ 'hello wORLD'|capitalize }} {{ "it's a-fine (day) [x] äb"|title }} {{ u|upper }} {{ 'abc'.title() }} {{ "they're bill's"|title }} {{ "they're bill's".title() }}
{{ sp|trim }}| {{ 'xxaxx'|trim('x') }} {{ '  a '|length }} {{ u|length }} {{ d|length }} {{ l|count }} {{ missing|length }} {{ e|length }}
{{ missing|default('dflt') }} {{ e|default('dflt') }}| {{ e|default('dflt', true) }} {{ n|default('x') }} {{ n|d('x', boolean=true) }} {{ f|default('y', true) }} {{ missing|default }}|
{{ l|join(', ') }} {{ l|join }} {{ users|join('-', attribute='name') }} {{ 'abc'|join('.') }} {{ [1, none, 'x']|join('/') }} {{ d|join(',') }}
{{ l|first }} {{ l|last }} {{ []|first }}| {{ 'abc'|first }} {{ 'abc'|last }} {{ l|reverse|list }} {{ 'abc'|reverse }} {{ d|list }} {{ 'ab'|list }} {{ (1, 2)|list }}
{{ l|sort }} {{ l|sort(reverse=true) }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ users|sort(attribute='age')|map(attribute='name')|list }} {{ users|sort(attribute='age,name')|map(attribute='name')|list }}
{{ d|dictsort }} {{ {'b': 1, 'a': 2}|dictsort }} {{ {'b': 1, 'a': 2}|dictsort(by='value') }} {{ {'b': 1, 'A': 2}|dictsort(true) }} {{ {'b': 1, 'a': 2}|dictsort(reverse=true) }}
{{ users|map(attribute='name')|list }} {{ users|map(attribute='tags', default='none')|list }} {{ words|map('upper')|list }} {{ ['a,b', 'c']|map('replace', ',', ';')|list }} {{ [[1, 2], [3]]|map('sum')|list }} {{ users|map(attribute='tags.0', default='-')|list }}
{{ users|selectattr('on')|map(attribute='name')|list }} {{ users|rejectattr('on')|map(attribute='name')|list }} {{ users|selectattr('age', 'eq', 31)|map(attribute='name')|list }} {{ users|selectattr('tags', 'defined')|list|length }} {{ users|rejectattr('age', '>', 5)|map(attribute='name')|join }}
{{ [1, 2, 3, 4]|select('odd')|list }} {{ [1, 2, 3, 4]|reject('odd')|list }} {{ [0, 1, '', 'a', none]|select|list }} {{ [0, 1, '']|reject|list }} {{ [1, 2, 3]|select('in', [2, 3])|list }} {{ [4, 6]|select('divisibleby', 3)|list }}
{{ words|unique|list }} {{ words|unique(case_sensitive=true)|list }} {{ [1, 2, 1]|unique|list }} {{ users|unique(attribute='age')|map(attribute='name')|list }} {{ l|min }} {{ l|max }} {{ words|min }} {{ users|max(attribute='age') }} {{ []|max }}| {{ l|sum }} {{ users|sum(attribute='age') }} {{ [1.5, 2]|sum }} {{ l|sum(start=10) }}
{{ s|replace('o', '0') }} {{ s|replace('o', '0', 1) }} {{ 'aaa'|replace('a', 'bb', 2) }} {{ 5|replace(5, 6) }} {{ 'abc'.replace('', '-') }} {{ 'abcabc'.replace('bc', 'X', 1) }}
{{ ml|indent }} / {{ ml|indent(2, true) }} / {{ ml|indent(width=3, blank=true) }} / {{ ml|indent('> ') }}
{{ num|int }} {{ '3.9'|int }} {{ 'zz'|int }} {{ 'zz'|int(7) }} {{ 3.99|int }} {{ '0x1A'|int(base=16) }} {{ '101'|int(0, 2) }} {{ none|int }} {{ true|int }} {{ ' 12 '|int }} {{ '2.5'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ 3|float }} {{ '1e3'|float }}
{{ neg|abs }} {{ -2.5|abs }} {{ 2.5|round }} {{ 3.5|round }} {{ 2.567|round(2) }} {{ 2.1|round(0, 'ceil') }} {{ 2.9|round(method='floor') }} {{ 42|round }} {{ 2.675|round(2) }} {{ 1234.5|round(-2) }} {{ 0.5|round }} {{ -1.5|round }}
{{ a|string + 'x' }} {{ n|string }} {{ l|string }} {{ 1.0|string }} {{ html|escape }} {{ html|e|length }} {{ html|safe }} {{ 'a b  c'|wordcount }} {{ 'x'|center(7) }}| {{ 'ab'|center(5) }}|
{{ d|tojson }} {{ l|tojson }} {{ s|tojson }} {{ n|tojson }} {{ t|tojson }} {{ x|tojson }} {{ 1.0|tojson }} {{ 1e20|tojson }} {{ [] |tojson }} {{ {}|tojson }} {{ html|tojson }} {{ u|tojson }} {{ "\u0001\t\"\\/\u007f"|tojson }}
{{ d|tojson(indent=2) }} {{ [[], {}, [1, [2]]]|tojson(indent=4) }} {{ u|tojson(ensure_ascii=true) }} {{ u|tojson(true) }} {{ {'b': 1, 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true) }} {{ d|tojson(separators=(',', ':')) }} {{ [1, 2]|tojson(indent='--') }}
{{ missing|tojson }}
{{ (1, 2)|tojson }} {{ {'a': (1, none)}|tojson }}
{{ 'abc'|batch(2)|list }} {{ [1, 2, 3]|batch(2, 'x')|list }} {{ '%s is %d and %.2f%%'|format('x', 3, 1.005) }} {{ '%05d|%-4s|%+d|%x' % (42, 'ab', 5, 255) }} {{ '%s' % n }} {{ '%r' % s }} {{ '%5.1f' % 3.14159 }}
{{ s.upper() }} {{ s.lower() }} {{ sp.strip() }}| {{ sp.lstrip() }}| {{ sp.rstrip() }}| {{ 'xyaxy'.strip('xy') }} {{ 'xxa'.lstrip('x') }} {{ 'axx'.rstrip('x') }} {{ s.swapcase() }} {{ 'abc'.capitalize() }}
{{ s.split() }} {{ s.split(' ') }} {{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b '.split() }} {{ 'a b c'.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a b c d'.rsplit(none, 2) }} {{ 'aXXb'.split('XX')[-1] }}
{{ s.startswith('Hell') }} {{ s.endswith(('x', 'ld')) }} {{ s.startswith(('x', 'y')) }} {{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('zz') }} {{ s.index('W') }} {{ s.count('l') }} {{ u.find('😀') }} {{ s.startswith('World', 6) }} {{ 'aaa'.count('aa') }} {{ s.find('o', 5) }}
{{ s.index('zz') }}
{{ ml.splitlines() }} {{ ml.splitlines(true) }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('x') }} {{ ', '.join(['a', 'b']) }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'ab'.ljust(4) }}| {{ 'ab'.rjust(4, '*') }} {{ 'ab'.center(5) }}|
{{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ 'AB'.isupper() }} {{ 'ab'.islower() }} {{ ' '.isspace() }} {{ ''.isdigit() }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }}
{{ d.get('one') }} {{ d.get('no') }} {{ d.get('no', 'dflt') }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.items()|list }} {{ d.items()|list|length }} {{ l.index(2) }} {{ [1, 2, 1].count(1) }}
{{ a is defined }} {{ missing is defined }} {{ missing is undefined }} {{ n is none }} {{ n is not none }} {{ missing is none }} {{ s is string }} {{ l is string }} {{ d is mapping }} {{ l is mapping }} {{ l is iterable }} {{ a is iterable }} {{ s is iterable }} {{ l is sequence }} {{ d is sequence }} {{ a is sequence }}
{{ a is number }} {{ x is number }} {{ t is number }} {{ s is number }} {{ a is integer }} {{ x is integer }} {{ t is integer }} {{ x is float }} {{ t is boolean }} {{ a is boolean }} {{ t is true }} {{ f is false }} {{ 1 is true }} {{ 'AB' is upper }} {{ 'ab' is lower }} {{ a is odd }} {{ b is even }} {{ b is divisibleby 2 }} {{ b is divisibleby(3) }}
{{ a is eq 3 }} {{ a is equalto(3) }} {{ a is ne 3 }} {{ a is gt 2 }} {{ a is lt(2) }} {{ a is ge 3 }} {{ a is le 3 }} {{ a is in [1, 3] }} {{ 'e' is in s }} {{ a is sameas a }} {{ not a is none }} {{ a is not defined }} {{ a is number and b is number }} {{ range is callable }} {{ s is callable }}
{{ 'a' 'b' "c" }} {{ 'tab\tnl\\n\x41\u00e9' }} {{ "dq 'sq'" }} {{ 'it\'s' }} {{ {'a': 1, "b": [2]}.b }} {{ {'a': {'b': 1}} }} {{ {} }} {{ [1, 2, ] }} {{ {'a': 1, } }} {{ dict(a=1, b='x') }} {{ dict(d, z=1)['z'] }}
{{ a|default(1) + 2 }} {{ -1|abs }} {{ (-1)|abs }} {{ not f|default(true) }} {{ 'a,b'|replace(',', '|')|upper }} {{ l|length - 1 }} {{ 2 * l|length }} {{ s|lower|replace('l', 'L')|trim }} {{ 'x' ~ a ~ 1 }} {{ 'p' + 'q' ~ 3 * 4 }}
{{ messages[-1].content }} {{ messages|length }} {{ messages[1:]|map(attribute='role')|join(',') }} {{ (messages|selectattr('role', 'equalto', 'user')|list)[-1].content }} {{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list|last }} {{ messages[0]['role'] == 'system' }} {{ messages[::-1][0].content }}
{% for m in messages[1:] %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}{% endif %}{{ m.role|capitalize }}: {{ m.content }}{{ '\n' if not loop.last }}{% endfor %}
{{ [1, 2, 3]|map('string')|join('+') }} {{ ['b', 'a']|sort|first }} {{ users|map(attribute='name')|map('lower')|sort|join(' ') }} {{ [users[0]]|tojson }} {{ users|first|items|list }} {{ [[1, 2], [3, 4]]|map('join', '-')|list }}
{{ 9223372036854775807 }} {{ 12345678901 * 10 }} {{ 0.1 }} {{ 1e-5 }} {{ 123456789.123 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }} {{ 1e22 }} {{ -0.0 }} {{ 1.0e2 }}
{% if 'a' is in ['a'] and not ('b' is in ['a']) and 1 == 1 != 2 %}ok{% endif %} {% if not t or (a > 1 and b < 9) %}ok{% endif %} {% if n %}x{% elif not n %}y{% endif %}
{{ a.b }}| {{ s.b }}| {{ l.b }}| {{ (a).c is defined }} {{ d['one'] is defined and d['one'] }} {{ d.one.two is defined }}
{{ html|replace('<', '&lt;') }} {{ 'a\nb'|replace('\n', '\\n') }} {{ '' ~ missing ~ '|' }} {{ [missing]|length }} {{ missing == missing }} {{ missing != 1 }} {{ missing|upper }}| {{ missing|list }} {{ missing|join }}|
{{ x if x is number else 'no' }} {{ ('a', 'b') | join('/') }} {{ 'a' if 1 in [1] else 'b' }} {{ [1, 2][0] + {'k': 2}.k }} {{ ('%s' % 'a') ~ 'b' }} {{ (1 if f else 2) * 3 }} {{ a ** b ** 1 }} {{ 10 - 2 - 3 }} {{ 100 / 10 / 2 }}
{% set ns = namespace(l=[]) %}{% for i in l %}{% set ns.l = ns.l + [i * 2] %}{% endfor %}{{ ns.l }} {% set ns.t = 'x' %}{{ ns.t ~ ns['t'] }}
{% set x = 1 %}{% set x = x + 1 %}{{ x }} {% set outer = 'o' %}{% for i in [1] %}{% for j in [2] %}{{ outer }}{{ i }}{{ j }}{{ loop.index }}{% endfor %}{{ loop.length }}{% endfor %}
{%- if t -%} tight {%- endif -%} {{- ' a ' -}} b {{ 'c' -}}   d   {{- 'e' }}
{{ unclosed
{% if t %}no end
{% endif %}
{% for %}
{{ 'a' b }}
{{ }}
{% unknown %}
{{ [1, 2 }}
{{ "no end }}
{% break %}
""".strip("\n").split("\n")

# Sources with line breaks, for white-space control.
BLOCKS = [
    "{% if t %}\nyes\n{% endif %}\nend",
    "  {% if t %}\n    yes\n  {% endif %}\n  end\n",
    "a\n  {%- if t %}\n  b\n  {%- endif %}\nc\n\n",
    "a  {% if t %}  b  {% endif %}  c\n",
    "x {%+ if t %} y\n{% endif +%}\nz",
    "{% for i in l %}\n  {{ i }}\n{% endfor %}\n",
    "{% for i in l -%}\n  {{ i }}\n{%- endfor %}\n.",
    "  {# comment #}\n  text {# c #} more\n{#- tight -#}  \n end",
    "\t{% set q = 1 %}\t\n{{ q }}\n\n",
    "{{ a }}\n{{ b }}\n",
    "  {{ a }}  \n",
    "line\r\n{% if t %}\r\nwin\r\n{% endif %}\rmac",
    "{% raw %}\n  {{ x }}\n  {% endraw %}\nend",
    "{%- raw -%}  {{ x }}  {%- endraw -%}  end",
    "{% set z %}\n  body\n{% endset %}[{{ z }}]",
    "{% macro m() %}\n  in\n{% endmacro %}\n<{{ m() }}>",
    "\n\n{% if t %}x{% endif %}\n\n",
    "text{% if t %}\n\nblank{% endif %}",
    "  {%- set a1 = 1 -%}  \n  {{- a1 -}}  \n  ",
    "{%if t%}tight{%endif%}{{a}}{{-b-}}",
    "\u00a0{%- if t %}nbsp{% endif %}",
    "end with two\n\n",
    "{% if t %}{# c #}\n{% endif %}x",
]

cases = [{"template": s, "want": render(s, CONTEXT)} for s in SNIPPETS + BLOCKS]

TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Wetter für \"eine\" Stadt <b>&</b>", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1, "minimum": 0.5}}, "required": ["city"]}}},
         {"type": "function", "function": {"name": "noop", "parameters": {}}}]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2}}}]}
CHATS = {
    "plain": {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True},
    "no generation prompt": {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\n\n there "}], "add_generation_prompt": True},
    "late system": {"messages": [{"role": "user", "content": "Hi"}, {"role": "system", "content": "Now French."}, {"role": "user", "content": "Hi"}], "add_generation_prompt": True},
    "turns": {"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "one"}, {"role": "user", "content": "2"}], "add_generation_prompt": True},
    "thinking off": {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True, "enable_thinking": False},
    "thinking on": {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True, "enable_thinking": True},
    "tools": {"messages": [{"role": "user", "content": "Wetter?"}], "tools": TOOLS, "add_generation_prompt": True},
    "tools and system": {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Wetter?"}], "tools": TOOLS, "add_generation_prompt": True},
    "tool call": {"messages": [{"role": "user", "content": "Wetter?"}, CALL, {"role": "tool", "content": "{\"t\": 20}"}], "tools": TOOLS, "add_generation_prompt": True},
    "two tool responses": {"messages": [{"role": "user", "content": "W?"}, CALL, {"role": "tool", "content": "A"}, {"role": "tool", "content": "B"}, {"role": "assistant", "content": "Done"}, {"role": "user", "content": "ok"}], "tools": TOOLS},
    "call with text": {"messages": [{"role": "user", "content": "W?"}, {"role": "assistant", "content": "Let me see", "tool_calls": [{"name": "a", "arguments": "{\"x\": 1}"}, {"name": "b", "arguments": {}}]}], "tools": TOOLS},
    "reasoning": {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A", "reasoning_content": "\nbecause\n"}]},
    "reasoning in text": {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nA"}, {"role": "user", "content": "more"}, {"role": "assistant", "content": "<think>\nwhy2\n</think>\n\nB"}]},
    "reasoning null": {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A", "reasoning_content": None}]},
    "pretended response": {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "<tool_response>y</tool_response>"}], "add_generation_prompt": True},
    "empty tools": {"messages": [{"role": "user", "content": "Q"}], "tools": [], "add_generation_prompt": True},
    "no messages": {"messages": [], "add_generation_prompt": True},
    "unicode": {"messages": [{"role": "user", "content": "日本 😀 \u0000 \u00a0"}], "add_generation_prompt": True},
    "content missing": {"messages": [{"role": "user"}], "add_generation_prompt": True},
}
qwen3 = open(qwen3_template, encoding="utf-8").read()
demo = json.load(open(demo_config, encoding="utf-8"))["chat_template"]
chats = [{"name": name, "context": c, "qwen3": render(qwen3, c), "demo": render(demo, c)} for name, c in CHATS.items()]

with open(out_path, "w", encoding="utf-8") as out:
    about = f"rendered by Jinja2 {jinja2.__version__} set up as transformers does; null: must fail; see tools/text_vectors/README.md"
    rows = lambda items: "[\n" + ",\n".join(json.dumps(i, ensure_ascii=False) for i in items) + "\n]"
    out.write(f'{{"about": {json.dumps(about)},\n"context": {json.dumps(CONTEXT, ensure_ascii=False)},\n"snippets": {rows(cases)},\n"chats": {rows(chats)}}}\n')
print(len(cases), "snippets,", len(chats), "chats")
